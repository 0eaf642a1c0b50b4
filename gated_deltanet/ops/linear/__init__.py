"""A linear map whose weight may be packed: in float32, bfloat16, or scaled whole numbers of 8 or 4 bits."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks, native
from ..library import operator, plain, unwatched
from ..prepared import prepared
from . import cpp, reference
from .packing import FORMATS, PackedWeight, Quantised, pack, packed_bytes, quantise

__all__ = ["BACKENDS", "FORMATS", "PackedWeight", "Quantised", "embedding_rows", "linear", "pack", "quantise"]

SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, Tensor? added, str format, SymInt N) -> Tensor"


def _fake(x, weight, bias, added, format, N):
    return x.new_empty(*x.shape[:-1], N)


BACKENDS = {
    "reference": operator("linear_reference", SCHEMA, reference.forward, _fake),
    "cpp": operator("linear_cpp", SCHEMA, cpp.forward, _fake, cpp.backward),
}


class Inputs(NamedTuple):
    """What `linear` is given; of a packed weight its bytes, its format and its shape."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    added: Tensor | None
    format: str
    shape: tuple[int, int] | None
    backend: str


def linear(
    x: Tensor,
    weight: Tensor | PackedWeight,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """For every row of x,

        y = W x + bias + added

    x: [..., K]. weight: [N, K], in x's dtype or bfloat16; or what `pack` made of one, which has no gradient.
    bias: [N]. added: [..., N], what is added to the result, such as a residual stream.
    backend: "reference", "cpp" (native, on a CPU, x in float32 and bfloat16), or "auto": cpp where it can run.

    Returns y: [..., N], in x's dtype; sums are in float32 (float64 with float64 inputs). With cpp a row of y has the
    same bits whatever the number of rows, their addresses and the threads; and a packed weight gives those of the
    floats it stands for.
    """
    if isinstance(weight, PackedWeight):
        return _linear(Inputs(x, weight.data, bias, added, weight.format, weight.shape, backend))
    return _linear(Inputs(x, weight, bias, added, "", None, backend))


@prepared
def _linear(x: Inputs) -> Callable[[Inputs], Tensor]:
    op, N = "linear", _check(x)
    form = checks.choose_backend(op, BACKENDS, x.backend, auto="reference", like=x.x)
    operands = x.x, x.weight, x.bias, x.added
    float32 = all(z is None or z.dtype == torch.float32 for z in (x.x, x.bias, x.added))
    if form is BACKENDS["cpp"] and float32 and plain(*operands) and (x.format or x.weight.dtype in native.DTYPES):
        run = cpp.prepare_forward(x.x, x.weight, x.format, N)
        return lambda x: run(x.x, x.weight, x.bias, x.added)
    return lambda x: form(x.x, x.weight, x.bias, x.added, x.format, N)


def _check(x: Inputs) -> int:
    """Returns N."""
    op, rows = "linear", " ".join(f"x{i}" for i in range(getattr(x.x, "ndim", 2) - 1))
    if x.shape is not None:
        _check_packed(op, x.weight, x.format, x.shape)
    weight = x.weight if x.shape is None else x.weight.new_empty(1).expand(x.shape)
    sizes = checks.check_shapes(
        op, x=(x.x, f"{rows} K"), weight=(weight, "N K"), bias=(x.bias, "? N"), added=(x.added, f"? {rows} N")
    )
    checks.check_floats(op, x=x.x)
    if x.shape is None and x.weight.dtype not in (x.x.dtype, torch.bfloat16):
        raise ValueError(f"{op}: weight is {x.weight.dtype}, expected {x.x.dtype}, as x is, or torch.bfloat16")
    for name, z in (("bias", x.bias), ("added", x.added)):
        if z is not None:
            checks.check_floats(op, **{name: z})
    return sizes["N"]


def _check_packed(op: str, data: Tensor, format: str, shape: tuple[int, int]) -> None:
    if format not in FORMATS:
        raise ValueError(f"{op}: weight.format is {checks.shown(format)}, expected one of {', '.join(FORMATS)}")
    expected = packed_bytes(format, *shape)
    if not isinstance(data, Tensor) or data.dtype != torch.uint8 or list(data.shape) != [expected]:
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, Tensor) else checks.shown(data)
        raise ValueError(f"{op}: weight.data is {found}, expected uint8 [{expected}] for {format} {list(shape)}")


def embedding_rows(weight: PackedWeight, tokens: Tensor) -> Tensor:
    """Rows of a packed weight [N, K], such as embeddings: [..., K] float32. tokens: [...], from 0 to N − 1."""
    flat, (N, K) = tokens.flatten(), weight.shape
    if native.refusal(weight.data.new_empty(0, dtype=torch.float32)) is None and unwatched(tokens):
        rows = cpp.unpack(weight.data, weight.format, N, K, flat.long().contiguous())
    else:
        rows = weight.to_dense()[flat]
    return rows.view(*tokens.shape, K)
