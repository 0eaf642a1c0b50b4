"""The tables of `gdn bench op` on other mixers' ops: attention beside torch's own, and Mamba's selective scan."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gated_deltanet import ops

from .cases import Call

THEIRS = (
    "torch",
    "torch, mask",
    "flex",
)  # torch's fused attention, plain or with a mask over all pairs; flex attention
D_INNER, D_STATE = 512, 16  # of the selective scan
DECODED = 16  # sequences that are decoded together, so that their cache is larger than the processor's
READ = "read"  # the yardstick of decoding: a sum over as many bytes as the cache has


class OpEntry(NamedTuple):
    """A contestant. who: a backend of ours, one of THEIRS, or READ."""

    op: str  # "attention" or "selective_scan"
    who: str
    what: str  # "forward", "forward+backward" or "step"
    dtype: str
    L: int
    H: int
    d: int
    threads: int
    window: int | None = None
    documents: int = 1  # of unequal length, packed in the row


def attention_races(settings) -> Iterator[list[OpEntry]]:
    """Full, windowed and packed, in both directions, and decoding."""
    for dtype in settings.dtypes:
        base = OpEntry("attention", "", "", dtype, 0, 8, 64, settings.threads)
        long = 256 if settings.quick else 4096
        for entry in (
            base._replace(L=long // 8),
            base._replace(L=long // 2),
            base._replace(L=long, d=128),
            base._replace(L=long, window=long // 16),
            base._replace(L=long, documents=16),
        ):
            yield contestants(entry._replace(what="forward"))
            yield contestants(entry._replace(what="forward+backward"))
        yield contestants(base._replace(what="step", L=long))


def scan_races(settings) -> Iterator[list[OpEntry]]:
    for dtype in settings.dtypes:
        for what in ("forward", "forward+backward"):
            entry = OpEntry(
                "selective_scan", "", what, dtype, 64 if settings.quick else 2048, D_INNER, D_STATE, settings.threads
            )
            yield [entry._replace(who=name) for name in ops.usable("selective_scan") if name != "reference"]


def contestants(entry: OpEntry) -> list[OpEntry]:
    names = [name for name in ops.usable("attention") if name != "reference"]
    if entry.what == "step":
        return [entry._replace(who=name) for name in (*names, READ)]
    plain = entry.window is None and entry.documents == 1
    names.append("torch" if plain else "torch, mask")
    if entry.what == "forward" and flex_compiles():  # it has no backward on a CPU
        names.append("flex")
    return [entry._replace(who=name) for name in names]


def flops(entry: OpEntry) -> float:
    """Useful ones. Attention: 4 d for each pair of query and key, 3.5 times that with backward. Of a scan: 0."""
    if entry.op != "attention" or entry.what == "step":
        return 0.0
    pairs = 0
    for begin, end in pairwise(ends_of(entry)):
        seen = min(entry.window or end - begin, end - begin)
        pairs += seen * (end - begin) - seen * (seen - 1) // 2
    return (1 if entry.what == "forward" else 3.5) * 4 * entry.d * pairs * entry.H


def units(entry: OpEntry) -> int:
    """What a time is divided by: tokens and heads of attention, tokens of a scan; a step is one."""
    return 1 if entry.what == "step" else entry.L * (entry.H if entry.op == "attention" else 1)


def call_of(entry: OpEntry) -> Call:
    make = {"selective_scan": scan, "attention": decode if entry.what == "step" else attend}[entry.op]
    return make(entry)


def timed(entry: OpEntry, function: Callable[..., Tensor], *operands: Tensor) -> Call:
    """One direction of a function of tensors."""
    if entry.what == "forward":
        return torch.no_grad()(partial(function, *operands))
    leaves = [x.detach().requires_grad_() for x in operands]
    gradient = torch.ones_like(function(*operands))
    return lambda: torch.autograd.grad(function(*leaves), leaves, gradient)


def attend(entry: OpEntry) -> Call:
    q, k, v = (normal(1, entry.L, entry.H, entry.d, dtype=entry.dtype, seed=seed) for seed in range(3))
    if entry.who not in THEIRS:
        ends = None if entry.documents == 1 else torch.tensor(ends_of(entry))
        options = {"window": entry.window, "cu_seqlens": ends, "keep_cache": False, "backend": entry.who}
        return timed(entry, lambda q, k, v: ops.attention(q, k, v, **options)[0], q, k, v)
    function = their_function(entry)
    return timed(entry, function, *(x.transpose(1, 2).contiguous() for x in (q, k, v)))


def their_function(entry: OpEntry) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Of q, k, v: [1, H, L, d]."""
    if entry.who == "torch":
        return partial(F.scaled_dot_product_attention, is_causal=True)
    if entry.who == "torch, mask":
        at = torch.arange(entry.L)
        return partial(F.scaled_dot_product_attention, attn_mask=sees(entry)(0, 0, at[:, None], at))
    mask = create_block_mask(sees(entry), None, None, entry.L, entry.L, device="cpu")
    return partial(torch.compile(flex_attention), block_mask=mask)  # pyright: ignore  # which says it may return more


def sees(entry: OpEntry) -> Callable[..., Tensor]:
    """Who sees whom, as flex attention asks: by batch, head, query and key."""
    document = torch.bucketize(torch.arange(entry.L), torch.tensor(ends_of(entry)[1:-1]), right=True)
    window = entry.window or entry.L
    return lambda b, h, i, j: (j <= i) & (i - j < window) & (document[i] == document[j])


def flex_compiles() -> bool:
    """Whether flex attention can be compiled here, which needs a C++ compiler."""
    try:
        x = torch.zeros(1, 1, 16, 16)
        torch.compile(flex_attention)(x, x, x)
    except Exception:  # whatever a compiler may find wrong
        return False
    return True


def decode(entry: OpEntry) -> Call:
    """One token of each sequence behind a cache of L, again and again at the same place."""
    cache = [normal(DECODED, entry.L, entry.H, entry.d, dtype=entry.dtype, seed=seed) for seed in range(2)]
    if entry.who == READ:
        everything = torch.cat([x.flatten() for x in cache]).view(torch.float32)
        return everything.sum
    token = [normal(DECODED, entry.H, entry.d, dtype=entry.dtype, seed=seed) for seed in range(3)]
    length = torch.full((DECODED,), entry.L - 1)
    step = partial(ops.attention_step_, *token, backend=entry.who)

    @torch.no_grad()
    def call() -> object:
        return step(ops.KVCache(cache[0], cache[1], length.clone()))

    return call


def scan(entry: OpEntry) -> Call:
    inputs = {name: torch.randn(1, entry.L, entry.d) for name in ("B", "C")}
    inputs |= {"x": torch.randn(1, entry.L, entry.H), "dt": F.softplus(torch.randn(1, entry.L, entry.H) - 3)}
    inputs = {name: x.to(getattr(torch, entry.dtype)) for name, x in inputs.items()}
    inputs["A"] = -torch.arange(1.0, entry.d + 1).expand(entry.H, entry.d)

    def function(B: Tensor, C: Tensor, x: Tensor, dt: Tensor, A: Tensor) -> Tensor:
        return ops.selective_scan(x, dt, A, B, C, backend=entry.who)[0]

    return timed(entry, function, *inputs.values())


def normal(*shape: int, dtype: str, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def ends_of(entry: OpEntry) -> list[int]:
    """Of the documents, the same in every run."""
    order = torch.randperm(entry.L - 1, generator=torch.Generator().manual_seed(0))
    return [0, *sorted((order[: entry.documents - 1] + 1).tolist()), entry.L]
