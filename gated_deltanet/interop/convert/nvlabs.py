"""Checkpoints of the paper's official code (NVlabs/GatedDeltaNet, its `lit_gpt`) as ours, and ours as its: one file
.pth, no config.

It is read with `weights_only`, so nothing in it is run. Gated DeltaNet and H1; embeddings are tied, β has a bias.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors.torch import save_file
from torch import Tensor

from gated_deltanet import files
from gated_deltanet.interop import folder as ours
from gated_deltanet.layers import Mixer
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.models.config import ModelConfig

from .accounting import HEAD, Shapes, check, count_layers, need, read_ours, shapes_of, share, shortest, size
from .checkpoint import Piece, Source, made, new_folder
from .joints import Joint, present, singles, to_ours, to_theirs

LAYERS = "transformer.h."
TOP = {"embedding.weight": "transformer.wte.weight", "norm.weight": "transformer.ln_f.weight"}
BLOCK = {
    "mixer_norm.weight": "norm_1.weight",
    "mlp_norm.weight": "norm_2.weight",
    "mlp.gate_proj.weight": "mlp.swiglu.w1.weight",
    "mlp.up_proj.weight": "mlp.swiglu.w2.weight",
    "mlp.out_proj.weight": "mlp.swiglu.w3.weight",
}
GDN = {f"mixer.{x}_proj.weight": f"attn.{x}_proj.weight" for x in "qkvb"}
GDN |= {f"mixer.{x}_conv.weight": f"attn.{x}_conv1d.weight" for x in "qkv"}
GDN |= {
    "mixer.b_proj.bias": "attn.b_proj.bias",
    "mixer.a_proj.weight": "attn.gk_proj.weight",
    "mixer.decay.A_log": "attn.A_log",
    "mixer.decay.dt_bias": "attn.dt_bias",
    "mixer.gate_proj.weight": "attn.g_proj.weight",
    "mixer.out_norm.weight": "attn.g_norm_swish_gate.weight",
    "mixer.out_proj.weight": "attn.o_proj.weight",
}
UNUSED = ".attn.D"  # a parameter that its layer does not read
FORMATS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def from_nvlabs(source: str | Path, folder: str | Path, *, d_head: int = 128, window: int = 2048) -> ModelConfig:
    """Write a .pth of official code as a folder that `gated_deltanet.load` reads.

    d_head, window: of H1's attention, which no tensor tells; official configs have these.
    """
    source, folder = Path(source), Path(folder)
    tensors = read_pth(source)
    found = {name: tuple(x.shape) for name, x in tensors.items()}
    with files.naming(source):
        config = infer(found, d_head, window)
    shapes = shapes_of(config, len(found), source)
    pieces, expected = to_ours(joints(config), shapes, found, ours.PREFIX)
    sources = {name: Source(source, name, tuple(x.shape), FORMATS[x.dtype]) for name, x in tensors.items()}
    check(source, sources, expected, {HEAD} | {name for name in found if name.endswith(UNUSED)})
    head, embedding = tensors.get(HEAD), tensors[TOP["embedding.weight"]]
    if head is not None and not torch.equal(head, embedding):
        raise ValueError(f"{source}: {HEAD} is not {TOP['embedding.weight']}, expected tied embeddings")
    values = {piece.name: piece.make(*(tensors[name] for name in piece.sources)).contiguous() for piece in pieces}
    with new_folder(folder) as unfinished:
        save_file(values, unfinished / ours.WEIGHTS, metadata={"format": "pt"})
        files.write_json(unfinished / ours.CONFIG, ours.to_json(config))
    return config


def to_nvlabs(source: str | Path, file: str | Path) -> ModelConfig:
    """Write a model of ours as a .pth that official code loads, under "model". It has all tensors in memory once."""
    source, file = Path(source), Path(file)
    if file.suffix != ".pth":
        raise ValueError(f"{file} is no name of a checkpoint of official code, expected one that ends in .pth")
    if file.exists():
        raise FileExistsError(f"{file} exists, expected a name that is free")
    config, sources, shapes = read_ours(source)
    check_config(config)
    pieces = to_theirs(present(joints(config), shapes), shapes, ours.PREFIX)
    files.write(file, lambda unfinished: write_pth(unfinished, state_dict(config, pieces, sources)))
    return config


def write_pth(file: Path, tensors: Mapping[str, Tensor]) -> None:
    with file.open("wb") as stream:  # whose errors are the system's, and not torch's
        torch.save({"model": tensors}, stream)


def check_config(config: ModelConfig) -> None:
    """That official code has such a model."""
    whose = "official code"
    if not config.tied or not config.d_ff:
        raise ValueError(f"tied is {config.tied} and d_ff is {config.d_ff}, {whose} has tied embeddings and MLPs")
    need(config, whose, norm_eps=1e-5)
    for mixer in config.mixers:
        if isinstance(mixer, Attention):
            need(mixer, whose, rope_theta=10000.0, rope_dims=None, qk_norm="none", gate=False, post_norm=False)
        elif isinstance(mixer, GatedDeltaNet):
            fields = {"n_v_heads": None, "decay": True, "gate": True, "out_norm": True, "beta_max": 1, "n_h": 1}
            need(mixer, whose, **fields, feature_map="silu", qk_norm="l2", out_eps=None)
        else:
            expected = "expected GatedDeltaNet and Attention"
            raise ValueError(f"the model has {type(mixer).__name__}, which {whose} does not have, {expected}")
        if getattr(mixer, "conv_size", 4) is None:
            raise ValueError(f"GatedDeltaNet: conv_size is None, {whose} has convolutions")


def state_dict(config: ModelConfig, pieces: Sequence[Piece], sources: Mapping[str, Source]) -> dict[str, Tensor]:
    """Ours by their names, and what only they have: a head that is the embedding, a bias of zero, a D of ones."""
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}
        found = {piece.name: made(piece, sources, opened, stack) for piece in pieces}
    found[HEAD] = found[TOP["embedding.weight"]]
    for layer in range(config.n_layers):
        if isinstance(config.mixer(layer), GatedDeltaNet):
            at = f"{LAYERS}{layer}"
            A_log, beta = found[f"{at}.attn.A_log"], found[f"{at}.attn.b_proj.weight"]
            found.setdefault(f"{at}.attn.b_proj.bias", beta.new_zeros(len(beta)))
            found[at + UNUSED] = torch.ones_like(A_log)
    return found


def read_pth(file: Path) -> Mapping[str, Tensor]:
    """The model's tensors, which stay in the file until they are read. A checkpoint has them under "model"."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}, expected a checkpoint of official code")
    if not is_zipfile(file):
        raise ValueError(f"{file} is no file of tensors and plain values: no zip file, as torch.save writes it")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file} is no file of tensors and plain values, all that is read: {reason}") from error
    found = found.get("model", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) and x.dtype in FORMATS for x in found.values()):
        raise ValueError(f"{file} holds no tensors by their names, expected a state_dict, or one under 'model'")
    return found


def joints(config: ModelConfig) -> list[Joint]:
    found = singles(TOP)
    for layer in range(config.n_layers):
        here, there, mixer = f"layers.{layer}.", f"{LAYERS}{layer}.", config.mixer(layer)
        found += singles(BLOCK, ours=here, theirs=there)
        if isinstance(mixer, Attention):  # of each group of heads its queries, its key, its value
            qkv = tuple(f"{here}mixer.{x}_proj.weight" for x in "qkv")
            found.append(Joint((f"{there}attn.attn.weight",), qkv, groups=mixer.H_kv))
            found += singles({"mixer.out_proj.weight": "attn.proj.weight"}, ours=here, theirs=there)
        else:
            found += singles(GDN, ours=here, theirs=there)
    return found


def infer(shapes: Shapes, d_head: int, window: int) -> ModelConfig:
    vocab_size, d_model = size(shapes, TOP["embedding.weight"], 2)
    mixers = [mixer_of(shapes, f"{LAYERS}{i}.attn", d_head, window) for i in range(count_layers(shapes, LAYERS))]
    d_ff = size(shapes, f"{LAYERS}0.mlp.swiglu.w3.weight", 2)[1]
    return ModelConfig(d_model, len(mixers), shortest(mixers), d_ff, vocab_size)


def mixer_of(shapes: Shapes, at: str, d_head: int, window: int) -> Mixer:
    if f"{at}.attn.weight" in shapes:
        n_heads = share(size(shapes, f"{at}.proj.weight", 2)[1], d_head, f"{at}.proj.weight", "d_head")
        rows = size(shapes, f"{at}.attn.weight", 2)[0] - n_heads * d_head
        n_kv_heads = share(rows, 2 * d_head, f"{at}.attn.weight without queries", "2 · d_head")
        return Attention(n_heads, d_head, None if n_kv_heads == n_heads else n_kv_heads, window)
    (n_heads,), (d_v,) = size(shapes, f"{at}.A_log", 1), size(shapes, f"{at}.g_norm_swish_gate.weight", 1)
    d_k = share(size(shapes, f"{at}.q_proj.weight", 2)[0], n_heads, f"{at}.q_proj.weight", "the heads")
    return GatedDeltaNet(n_heads, d_k, d_v, conv_size=size(shapes, f"{at}.q_conv1d.weight", 3)[2], beta_bias=True)
