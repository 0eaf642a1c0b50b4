"""Causal softmax attention: full, or over a sliding window (the SWA layers of the hybrids)."""

import torch
from torch import Tensor

from .. import checks
from ..library import operator, without_autocast
from ..packing import check_ends
from ..rotary import positions, rotate
from . import cpp, reference, sdpa
from .cache import KVCache, append
from .step import may_step, own_copy, step_

SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor k_cache, Tensor v_cache, Tensor length, Tensor? cu_seqlens, int? window)"
    " -> Tensor"
)


def _fake(q, k, v, k_cache, v_cache, length, cu_seqlens, window):
    return q.new_empty(*q.shape[:3], v.shape[-1])


whole = without_autocast(sdpa.attend)
in_blocks = operator("attention_sdpa", SCHEMA, sdpa.forward, _fake, sdpa.backward)


def _sdpa(q, k, v, k_cache, v_cache, length, cu_seqlens, window):
    """Where every token sees all before it, torch's kernel needs no blocks, and keeps what its backward wants."""
    L = q.shape[1]
    if cu_seqlens is None and k_cache.shape[1] == 0 and L > 0 and (window is None or window >= L):
        return whole(q, k, v, window=None)
    return in_blocks(q, k, v, k_cache, v_cache, length, cu_seqlens, window)


BACKENDS = {
    "reference": operator("attention_reference", SCHEMA, reference.forward, _fake),
    "sdpa": _sdpa,
    "cpp": cpp.attend,
}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: KVCache | None = None,
    *,
    window: int | None = None,
    rope_theta: float | None = None,
    cu_seqlens: Tensor | None = None,
    keep_cache: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, KVCache | None]:
    """For each head and token,

        o_t = Σ_s softmax_s(q_tᵀ k_s / √d) v_s        over the tokens s ≤ t, or t − window < s ≤ t

    q: [B, L, H, d]. k: [B, L, H_kv, d], v: [B, L, H_kv, d_v], H a multiple of H_kv;
    query head i reads key head i // (H / H_kv).
    cache: keys and values of the tokens before, of the same `window`, as an earlier call returned it; None: no such
    tokens. Each sequence may have its own length. Gradients flow into it.
    window: the number of tokens seen, the own one included. None: all.
    rope_theta: turn q and k to their positions, as `rotary.rotate` does (the cache holds turned keys). None: do not.
    cu_seqlens: [N + 1], packs N sequences in one row (B = 1). Without it N = B.
    keep_cache: False saves the time and memory of a cache nobody will use, as in training; None is returned for it.
    backend: "reference" (all scores), "sdpa" (torch's fused kernel on blocks), "cpp" (native, on a CPU, float32 and
    bfloat16), or "auto": cpp where it can run, else sdpa.

    Returns o: [B, L, H, d_v], in v's dtype, and a new cache (`KVCache` says what it holds); the old one is not changed.
    """
    op = "attention"
    sizes = checks.check_shapes(op, q=(q, "B L H d"), k=(k, "B L H_kv d"), v=(v, "B L H_kv d_v"))
    sizes["N"] = checks.check_cu_seqlens(op, cu_seqlens, q)
    _check(op, q, k, v, cache, window, sizes)
    _check_theta(op, rope_theta, sizes["d"])
    checks.check_switch(op, "keep_cache", keep_cache)
    form = checks.choose_backend(op, BACKENDS, backend, auto="sdpa", like=q)
    native, steps = form is BACKENDS["cpp"], False
    if cache is not None:
        allowed = form is not BACKENDS["reference"] and cu_seqlens is None and keep_cache
        steps = allowed and may_step(q, k, v, cache)
    else:
        length = torch.zeros(sizes["N"], dtype=torch.int64, device=q.device)
        k_cache, v_cache = (x.new_zeros(sizes["N"], 0, *x.shape[2:]) for x in (k, v))
        cache = KVCache(k_cache, v_cache, length)
    seen = cache.length

    def turned(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors if rope_theta is None else rotate(positions(seen, q, cu_seqlens), rope_theta, *tensors)

    if native and not steps:
        o = form(q, k, v, *cache, cu_seqlens, window, rope_theta)  # which turns q and k as it reads them
        return o, append(cache, turned(k)[0], v, cu_seqlens, window) if keep_cache else None
    check_ends(op, q, cu_seqlens)
    q, k = turned(q, k)
    if steps:
        o, cache = step_(q[:, 0], k[:, 0], v[:, 0], own_copy(cache, window), window, native=native)
        return o[:, None], cache
    o = form(q, k, v, *cache, cu_seqlens, window)
    return o, append(cache, k, v, cu_seqlens, window) if keep_cache else None


def attention_step_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: KVCache,
    *,
    window: int | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
) -> tuple[Tensor, KVCache]:
    """One token of decoding: writes it into the cache in place, and returns o: [N, H, d_v] and the cache. No gradient.

    q: [N, H, d], k: [N, H_kv, d], v: [N, H_kv, d_v], window and rope_theta as in `attention`. backend: "sdpa", "cpp" or
    "auto". With a window the returned cache is the given one. Without one its buffers are new, and twice as large, each
    time they were full.
    """
    op = "attention_step_"
    sizes = checks.check_shapes(op, q=(q, "N H d"), k=(k, "N H_kv d"), v=(v, "N H_kv d_v"))
    if cache is None:
        raise ValueError(f"{op}: cache is None, expected the KVCache that attention returned")
    _check_theta(op, rope_theta, sizes["d"])
    forms = {name: BACKENDS[name] for name in ("sdpa", "cpp")}
    native = checks.choose_backend(op, forms, backend, auto="sdpa", like=q) is BACKENDS["cpp"]
    _check(op, q, k, v, cache, window, sizes)
    checks.check_no_grad(op, q, k, v, cache.k, cache.v)
    if rope_theta is not None:
        q, k = (x[:, 0] for x in rotate(cache.length[:, None], rope_theta, q[:, None], k[:, None]))
    return step_(q, k, v, cache, window, native=native)


def _check_theta(op: str, rope_theta: float | None, d: int) -> None:
    if rope_theta is not None:
        checks.check_number(op, "rope_theta", rope_theta, above=0.0, most=torch.finfo(torch.float32).max)
        if d % 2:
            raise ValueError(f"{op}: q has heads of {d} numbers, expected an even number: rope_theta turns pairs")


def _check(op: str, q: Tensor, k: Tensor, v: Tensor, cache: KVCache | None, window: int | None, sizes: dict) -> None:
    H, H_kv = sizes["H"], sizes["H_kv"]
    if H_kv == 0 or H % H_kv:
        raise ValueError(f"{op}: q has {H} heads, expected a multiple of the {H_kv} heads of k and v")
    if window is not None:
        checks.check_whole(op, "window", window, least=1, instead=", or None for all tokens")
    checks.check_floats(op, q=q, k=k, v=v)
    if cache is None:
        return
    if not isinstance(cache, KVCache):
        raise ValueError(f"{op}: cache is a {type(cache).__name__}, expected a KVCache")
    for name, x in cache._asdict().items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{op}: cache.{name} is a {type(x).__name__}, expected a tensor")
    sizes = sizes | {"window": window, "capacity": cache.k.shape[1] if cache.k.ndim == 4 else 0}
    W = "capacity" if window is None else "window"
    checks.check_state(op, cache.k, f"N {W} H_kv d", sizes, like=k, name="cache.k", dtype=k.dtype)
    checks.check_state(op, cache.v, f"N {W} H_kv d_v", sizes, like=v, name="cache.v", dtype=v.dtype)
    checks.check_state(op, cache.length, "N", sizes, like=q, name="cache.length", dtype=torch.int64)
    if window is None and checks.values_are_cheap(cache.length):
        longest, slots = max(cache.length.tolist(), default=0), cache.k.shape[1]
        if longest > slots:
            raise ValueError(f"{op}: cache.length is up to {longest}, expected at most cache.k's {slots} slots")
