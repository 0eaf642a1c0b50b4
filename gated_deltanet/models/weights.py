"""Models with weights of few bits: what is packed, in which format, and how it is stored.

`model.safetensors` of such a model has for a weight of int8 or int4 two tensors: `….weight`, whole numbers, and
`….scale`, float16 [N, K / 32]. int8: [N, K]. int4: uint8 [N, K / 2], of each 32 inputs the first 16 in the lower
halves of 16 bytes and the others in the upper, 8 more than they are. K is filled up to blocks of 32. These are the
numbers of llama.cpp's q8_0 and q4_0.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gated_deltanet.layers.packed import Packed, PackedEmbedding, PackedLinear
from gated_deltanet.ops.linear import FORMATS, PackedWeight, Quantised, pack
from gated_deltanet.ops.linear.packing import QUANTISED, whole_of

from .model import CausalLM

KEPT = ("a_proj", "b_proj", "f_proj", "x_proj", "dt_proj")  # what gates are made of: float32, and small but for HGRN2
FINER = {"int4": "int8"}  # of embedding and head, by the format of the others: docs/inference.md measures it


def check_format(weights: str, name: str = "weights") -> None:
    if weights not in FORMATS:
        raise ValueError(f"{name} is {weights!r}, expected one of {', '.join(FORMATS)}")


def packed_format(model: CausalLM) -> str | None:
    """That of the projections; None if the model's weights are not packed."""
    return next((module.format for module in model.modules() if isinstance(module, PackedLinear)), None)


def pack_weights(model: CausalLM, weights: str) -> CausalLM:
    """The same model with its projections, embedding and head packed in this format, and all else in float32.

    It is changed in place. Gates' projections, convolutions, norms and decays are not packed.
    """
    check_format(weights)
    if (found := packed_format(model)) is not None:
        raise ValueError(f"the model's weights are {found} already, expected floating-point ones to make {weights} of")
    for name, module in list(packable(model)):
        with torch.no_grad():
            replace(model, name, pack(module.weight.detach(), format_of(name, weights)), module)
    return model.float()


def packable(model: CausalLM) -> Iterator[tuple[str, Any]]:
    """Names and modules, in the order of the model."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.Linear) and not name.endswith(KEPT)):
            yield name, module


def format_of(name: str, weights: str) -> str:
    """Embedding and head (which are one if tied) have more bits than the others."""
    return FINER.get(weights, weights) if name in ("embedding", "head") else weights


def replace(model: CausalLM, name: str, weight: PackedWeight, module: Any) -> None:
    """module: what has this name now."""
    holder, _, last = name.rpartition(".")
    bias = getattr(module, "bias", None)
    new = PackedEmbedding(weight) if isinstance(module, nn.Embedding) else PackedLinear(weight, bias)
    setattr(model.get_submodule(holder), last, new)


def stored(model: CausalLM) -> dict[str, Tensor]:
    """The state as it is written to a file."""
    tensors = {name: x.detach() for name, x in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            del tensors[f"{name}.packed"]
            tensors |= {f"{name}.{part}": x for part, x in stored_weight(module.packed_weight).items()}
    return {name: x.contiguous() for name, x in tensors.items()}


def stored_weight(weight: PackedWeight) -> dict[str, Tensor]:
    if weight.format not in QUANTISED:
        return {"weight": weight.to_dense().to(getattr(torch, weight.format))}
    whole, scale = whole_of(weight)
    return {"weight": whole if weight.format == "int8" else to_nibbles(whole), "scale": scale}


def to_nibbles(whole: Tensor) -> Tensor:
    """[N, K] from −8 to 7 -> uint8 [N, K / 2]."""
    first, second = (whole + 8).to(torch.uint8).unflatten(1, (-1, 2, 16)).unbind(2)
    return (first | second << 4).flatten(1)


def from_nibbles(pairs: Tensor) -> Tensor:
    blocks = pairs.unflatten(1, (-1, 16))
    return torch.stack([blocks & 15, blocks >> 4], 2).flatten(1).to(torch.int8) - 8


def fill(model: CausalLM, tensors: dict[str, Tensor], weights: str, file: Any) -> None:
    """Packs what belongs to packed weights, of `stored` tensors, into a model without weights, and takes it away."""
    for name, module in list(packable(model)):
        N, K = module.weight.shape
        format = format_of(name, weights)
        parts = {part: take(tensors, f"{name}.{part}", *like, file) for part, like in expected(format, N, K).items()}
        weight = parts["weight"]
        if format in QUANTISED:
            if not parts["scale"].isfinite().all():
                raise ValueError(f"{file}: {name}.scale holds numbers that are not finite, expected none")
            whole = weight if format == "int8" else from_nibbles(weight)
            replace(model, name, pack(Quantised(whole, parts["scale"]), format, K), module)
        else:
            replace(model, name, pack(weight, format), module)


def expected(format: str, N: int, K: int) -> dict[str, tuple[torch.dtype, list[int]]]:
    """dtype and shape of each tensor of a stored weight."""
    blocks = -(-K // 32)
    if format not in QUANTISED:
        return {"weight": (getattr(torch, format), [N, K])}
    weight = (torch.int8, [N, 32 * blocks]) if format == "int8" else (torch.uint8, [N, 16 * blocks])
    return {"weight": weight, "scale": (torch.float16, [N, blocks])}


def take(tensors: dict[str, Tensor], name: str, dtype: torch.dtype, shape: list[int], file: Any) -> Tensor:
    if name not in tensors:
        raise ValueError(f"{file}: {name} is missing, expected {dtype} {shape}")
    x = tensors.pop(name)
    if x.dtype != dtype or list(x.shape) != shape:
        raise ValueError(f"{file}: {name} is {x.dtype} {list(x.shape)}, expected {dtype} {shape}")
    return x


def weight_bytes(model: CausalLM) -> int:
    """What a token reads of the model: all parameters and packed weights, but of an embedding that is not also the
    head, of which a token reads a row."""
    unread = () if model.head is None else ("embedding.",)
    named = (*model.named_parameters(), *model.named_buffers())
    return sum(x.nbytes for name, x in named if not name.startswith(unread))
