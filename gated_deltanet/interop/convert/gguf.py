"""A model of ours as a file for llama.cpp and what is built on it. Needs gguf: `pip install 'gated-deltanet[gguf]'`.

The architecture is llama.cpp's qwen35: models of Qwen3.5's dense text layers, such as the presets gdn-qwen35-*. It has
value heads in another order (head h reads key head h mod n_heads), and −exp(A_log) for A_log.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.quants import quantize
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor

from gated_deltanet import files
from gated_deltanet.data import tokenizer as tokenizers
from gated_deltanet.interop import folder as ours
from gated_deltanet.layers.attention import Attention
from gated_deltanet.layers.gated_deltanet import GatedDeltaNet
from gated_deltanet.models.config import ModelConfig
from gated_deltanet.naming import unknown

from . import qwen
from .accounting import Shapes, read_ours
from .checkpoint import Piece, Source, made
from .llama import POSITIONS

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
TOP = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight"}
BLOCK = {
    "mixer_norm.weight": "attn_norm.weight",
    "mlp_norm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.out_proj.weight": "ffn_down.weight",
}
GDN = {
    "mixer.gate_proj.weight": "attn_gate.weight",
    "mixer.a_proj.weight": "ssm_alpha.weight",
    "mixer.b_proj.weight": "ssm_beta.weight",
    "mixer.decay.A_log": "ssm_a",
    "mixer.decay.dt_bias": "ssm_dt.bias",
    "mixer.out_norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
}
ATTENTION = {
    "mixer.k_proj.weight": "attn_k.weight",
    "mixer.v_proj.weight": "attn_v.weight",
    "mixer.q_norm.weight": "attn_q_norm.weight",
    "mixer.k_norm.weight": "attn_k_norm.weight",
    "mixer.out_proj.weight": "attn_output.weight",
}
EXACT = ("ssm_alpha.weight", "ssm_beta.weight", "ssm_conv1d.weight")  # small, and what they make is multiplied up
BY_VALUES = ("v_proj.weight", "v_conv.weight", "gate_proj.weight", "a_proj.weight", "b_proj.weight", "A_log", "dt_bias")
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens


def to_gguf(source: str | Path, file: str | Path, *, kind: str = "bf16") -> ModelConfig:
    """Write the model in the folder `source`. kind: of its matrices, "f32", "bf16" or "q8_0"; the rest is float32."""
    if kind not in TYPES:
        raise unknown("kind", kind, TYPES)
    source, file = Path(source), Path(file)
    if file.exists():
        raise FileExistsError(f"{file} exists, expected a name that is free")
    config, sources, shapes = read_ours(source)
    values, pieces = describe(config), pieces_of(config, shapes)
    vocabulary = read_vocabulary(source, config.vocab_size)
    files.write(file, lambda unfinished: write(unfinished, values | vocabulary, pieces, sources, kind))
    return config


def describe(config: ModelConfig) -> dict[str, Any]:
    """The fields of qwen35, or an error that says what it does not have."""
    theirs = qwen.describe(config)
    attention = next((mixer for mixer in config.mixers if isinstance(mixer, Attention)), None)
    gdn = next(mixer for mixer in config.mixers if isinstance(mixer, GatedDeltaNet))
    if gdn.d_k != gdn.d_v:
        raise ValueError(f"GatedDeltaNet: d_v is {gdn.d_v}, llama.cpp's qwen35 has d_k, {gdn.d_k}, only")
    if attention is None:
        raise ValueError("the model has no attention, llama.cpp's qwen35 has it in every n-th layer")
    dims = attention.rope_dims or attention.d_head
    return {
        "context_length": POSITIONS,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "vocab_size": config.vocab_size,
        "attention.head_count": attention.n_heads,
        "attention.head_count_kv": attention.H_kv,
        "attention.key_length": attention.d_head,
        "attention.value_length": attention.d_head,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": float(attention.rope_theta or 0),
        "rope.dimension_count": dims,
        "rope.dimension_sections": [*qwen.sections(dims), 0],
        "full_attention_interval": interval(theirs["layer_types"]),
        "ssm.conv_kernel": gdn.conv_size,
        "ssm.inner_size": gdn.H_v * gdn.d_v,
        "ssm.state_size": gdn.d_k,
        "ssm.time_step_rank": gdn.H_v,
        "ssm.group_count": gdn.n_heads,
    }


def interval(kinds: Sequence[str]) -> int:
    """Every how many layers the last of them is attention."""
    n = kinds.index("full_attention") + 1
    if any((kind == "full_attention") != ((i + 1) % n == 0) for i, kind in enumerate(kinds)):
        raise ValueError("attention does not stand in every n-th layer, which llama.cpp's qwen35 has only")
    return n


def pieces_of(config: ModelConfig, shapes: Shapes) -> list[Piece]:
    pieces = [single(here, there, shapes[here]) for here, there in TOP.items() if here in shapes]
    for layer in range(config.n_layers):
        here, there, mixer = f"layers.{layer}.", f"blk.{layer}.", config.mixer(layer)
        names = BLOCK | (ATTENTION if isinstance(mixer, Attention) else GDN)
        gdn = mixer if isinstance(mixer, GatedDeltaNet) else None
        pieces += [single(here + x, there + y, shapes[here + x], gdn) for x, y in names.items()]
        if isinstance(mixer, Attention):
            both = [f"{here}mixer.{x}_proj.weight" for x in ("q", "gate")]
            pieces.append(joined(f"{there}attn_q.weight", both, shapes, groups=mixer.n_heads))
            continue
        for name, part in (("attn_qkv", "proj"), ("ssm_conv1d", "conv")):
            qkv = [f"{here}mixer.{x}_{part}.weight" for x in "qkv"]
            pieces.append(joined(f"{there}{name}.weight", qkv, shapes, gdn))
    return pieces


def single(here: str, there: str, shape: tuple[int, ...], gdn: GatedDeltaNet | None = None) -> Piece:
    return Piece(there, shape, (ours.PREFIX + here,), partial(tiled, name=here, gdn=gdn))


def joined(
    there: str, names: Sequence[str], shapes: Shapes, gdn: GatedDeltaNet | None = None, groups: int = 1
) -> Piece:
    shape = (sum(shapes[name][0] for name in names), *shapes[names[0]][1:])

    def make(*tensors: Tensor) -> Tensor:
        parts = [tiled(x, name, gdn) for x, name in zip(tensors, names, strict=True)]
        return torch.cat([x.unflatten(0, (groups, -1)) for x in parts], 1).flatten(0, 1)

    return Piece(there, shape, tuple(ours.PREFIX + name for name in names), make)


def tiled(x: Tensor, name: str, gdn: GatedDeltaNet | None) -> Tensor:
    """As llama.cpp has it: value heads by their number within the group, not by the key head that the group reads."""
    if gdn is None or ".mixer." not in name:
        return x
    heads = gdn.n_heads, gdn.H_v // gdn.n_heads
    if name.endswith(BY_VALUES):
        x = x.unflatten(0, (*heads, -1)).transpose(0, 1).flatten(0, 2)
    elif name.endswith("out_proj.weight"):
        x = x.unflatten(1, (*heads, -1)).transpose(1, 2).flatten(1, 3)
    return -x.float().exp() if name.endswith("A_log") else x


def kind_of(piece: Piece, kind: str) -> gguf.GGMLQuantizationType:
    """Vectors and what must be exact are float32; rows that are no whole blocks of q8_0 stay bfloat16."""
    if len(piece.shape) == 1 or piece.name.endswith(EXACT):
        return TYPES["f32"]
    block, _ = gguf.GGML_QUANT_SIZES[TYPES[kind]]
    return TYPES[kind] if piece.shape[-1] % block == 0 else TYPES["bf16"]


def write(
    file: Path, values: Mapping[str, Any], pieces: Sequence[Piece], sources: Mapping[str, Source], kind: str
) -> None:
    """Header, names and shapes, then one tensor at a time."""
    writer = gguf.GGUFWriter(file, "qwen35")
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for name, value in values.items():
        add(writer, name if name.startswith("tokenizer.") else f"qwen35.{name}", value)
    for piece in pieces:
        block, size = gguf.GGML_QUANT_SIZES[kind_of(piece, kind)]
        nbytes = prod(piece.shape) // block * size
        writer.add_tensor_info(piece.name, piece.shape, torch.empty(0).numpy().dtype, nbytes, kind_of(piece, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}
        for piece in pieces:
            tensor = made(piece, sources, opened, stack).float().contiguous().numpy()
            writer.write_tensor_data(quantize(tensor, kind_of(piece, kind)))
    writer.close()


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](name, value)


def read_vocabulary(source: Path, size: int) -> dict[str, Any]:
    """The tokenizer's fields; a model without one has none. size: of the model's vocabulary, which may be larger."""
    if not (source / ours.TOKENIZER).exists():
        return {"tokenizer.ggml.model": "none"}
    tokenizer = tokenizers.load(source)
    names = {i: name for name, i in tokenizer.get_vocab().items()}
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    kinds = [CONTROL if i in special else NORMAL if i in names else UNUSED for i in range(size)]
    end = tokenizers.find_end_of_text(tokenizer)
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [names.get(i, f"[PAD{i}]") for i in range(size)],
        "token_type": kinds,
        "merges": merges_of(tokenizer, source),
    }
    if end is not None:
        fields |= {"bos_token_id": end, "eos_token_id": end, "add_bos_token": True}  # as documents begin in training
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def merges_of(tokenizer: Tokenizer, source: Path) -> list[str]:
    """Of bytes, or of a byte-level BPE that splits text as GPT-2 does: what llama.cpp splits otherwise is refused."""
    values = files.parse_json(tokenizer.to_str(), str(source / ours.TOKENIZER))
    split, merges = values.get("pre_tokenizer") or {}, values["model"].get("merges", [])
    bytes_only = not merges and split.get("type") == "ByteLevel"
    as_gpt2 = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel) and split.get("use_regex") is True
    if not bytes_only and not (as_gpt2 and split.get("add_prefix_space") is False and not values.get("normalizer")):
        raise ValueError(f"{source}: the tokenizer splits text in a way of its own, expected bytes or GPT-2's way")
    never = tokenizers.characters()[0]  # llama.cpp wants a merge: two bytes 0, which are no token together
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in merges] or [f"{never} {never}"]
