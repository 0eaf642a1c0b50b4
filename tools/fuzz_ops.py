"""Random calls of every op, each backend and instruction set held to the error budget (gated_deltanet/bench/budget.py).

    python tools/fuzz_ops.py --cases 1000                   # of every op
    python tools/fuzz_ops.py --op attention --seed 7 --cases 1

tools/fuzz_draws.py says which calls. Each is evaluated once in float64, for all backends and instruction sets.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from fuzz_draws import OPS, Case, Draw
from torch import Tensor
from torch.nn.functional import pad, silu

from gated_deltanet import ops
from gated_deltanet.bench.accuracy import flatten, is_float, outputs_and_grads
from gated_deltanet.bench.budget import Yardstick
from gated_deltanet.ops import native
from gated_deltanet.ops.gated_delta_mix.reference import EPS, unit_keys
from gated_deltanet.ops.packing import each_sequence

NEIGHBOURS = 4  # of a call, at which the recurrence is measured again before a miss counts


def uncorrected(q, k, v, log_alpha, beta, S, cu_seqlens):
    """The gated delta rule without its correction, by which states become smaller than what they are sums of.

    Chunked forms subtract it after a chunk's sums, so they err by an eps of the state before. What is recalled does
    not change S here, but k and β have its gradient. An output is as large as what roundings of q's and S's numbers,
    each on its own, make of it: of one token it is v times a single sum, q · k, which may be nearly zero.
    """

    def recurrence(q, k, v, log_alpha, beta, S):
        q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
        o = []
        for q_t, k_t, v_t, log_alpha_t, beta_t in zip(*(x.unbind(1) for x in (q, k, v, log_alpha, beta)), strict=True):
            S = log_alpha_t.exp()[..., None, None] * S
            recalled = torch.einsum("bhk,bhkv->bhv", k_t.abs(), S.abs()).detach()
            stored = torch.einsum("bhk,bhv->bhkv", k_t, beta_t[..., None] * recalled)
            S = S + torch.einsum("bhk,bhv->bhkv", k_t, beta_t[..., None] * v_t) + stored - stored.detach()
            o_t = torch.einsum("bhk,bhkv->bhv", q_t, S)
            scattered = torch.einsum("bhk,bhkv->bhv", q_t.square(), S.square()).sqrt()
            o.append(o_t + (torch.maximum(scattered, o_t.abs()) - o_t).detach())
        return torch.stack(o, 1) if o else torch.zeros_like(v), S

    return each_sequence("uncorrected", recurrence, (q, k, v, log_alpha, beta), S, cu_seqlens)


def uncancelled(q, k, v, *others):
    """Attention whose scores s have the gradient p dp instead of p (dp − Σ p dp), which is 0 if one token is seen.

    Its probabilities count |s| / 8 times more: in any form that rounds s or Σ exp(s) they err by an eps of s.
    """

    def sequence(q, k, v, window):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        age = torch.arange(len(k))[len(k) - len(q) :, None] - torch.arange(len(k))
        seen = (age >= 0) & (age < (window or len(k)))
        scores = torch.einsum("lhd,mhd->hlm", q, k) * q.shape[-1] ** -0.5
        p = scores.detach().masked_fill(~seen, -torch.inf).softmax(-1)
        p = p * (1 + pad(scores.detach() * seen, (1, 0)).abs().amax(-1, keepdim=True) / 8)
        return torch.einsum("hlm,mhv->lhv", p * (1 + scores - scores.detach()), v)

    with patch.object(module("attention").reference, "sequence", sequence):
        return module("attention").reference.forward(q, k, v, *others)


def of_exponents(q, k, v, log_alpha, *others):
    """What an error of 1/16 of every log γ does to linear attention, outputs and state.

    Forms in chunks sum log α before they take exp, so they err by an eps of the sum. Gradients are left as they are.
    """
    plain = PLAIN["linear_attention"](q, k, v, log_alpha, *others)
    if log_alpha is None:
        return tuple(0 * x for x in plain)
    h = 1e-4
    with torch.no_grad():
        more, less = (PLAIN["linear_attention"](q, k, v, (1 + by) * log_alpha, *others) for by in (h, -h))
    return tuple((a - b) / (32 * h) + 0 * x for a, b, x in zip(more, less, plain, strict=True))


def unturned(q, k):
    """`unit_keys` by lengths without a gradient: what it subtracts is nearly all of the gradient where d_k is small."""
    q, k = (x * torch.rsqrt(x.detach().square().sum(-1, keepdim=True) + EPS) for x in (q, k))
    return q * q.shape[-1] ** -0.5, k


def unturned_norm(x, gate, weight, eps):
    """The gated RMS norm, likewise."""
    y = x / (x.detach().square().mean(-1, keepdim=True) + eps).sqrt() * weight
    return y if gate is None else y * silu(gate)


def module(op: str) -> Any:
    return import_module(f"gated_deltanet.ops.{op}")


# The recurrences as autograd differentiates them: as operators they would run twice.
RULE = module("gated_delta_rule")
PLAIN = {
    "gated_delta_rule": RULE._per_sequence(RULE.recurrence),
    "gated_delta_mix": lambda q, k, *others: PLAIN["gated_delta_rule"](*unit_keys(q, k), *others),
    "linear_attention": module("linear_attention")._per_sequence(module("linear_attention").recurrence),
    "selective_scan": module("selective_scan")._reference,
    "short_conv": module("short_conv")._per_sequence,
}
WRITTEN_OUT = ("attention", "gated_rms_norm", "swiglu", "linear_cross_entropy", "linear")
PLAIN |= {op: module(op).reference.forward for op in WRITTEN_OUT}
TERMS = {
    "gated_delta_rule": uncorrected,
    "gated_delta_mix": lambda q, k, *others: uncorrected(*unturned(q, k), *others),
    "attention": uncancelled,
    "linear_attention": of_exponents,
    "gated_rms_norm": unturned_norm,
}


def run_as(name: str, forms: dict[str, Callable], case: Case, **inputs: Any) -> Any:
    """The case with a form that is none of its op's backends, under a name of its own, since ops prepare by name."""
    with patch.dict(module(case.forms).BACKENDS, {name: forms[case.forms]}):
        return case.function(**inputs, backend=name)


def yardstick(case: Case) -> Yardstick:
    recurrence = partial(run_as, "plain", PLAIN, case)
    terms = partial(run_as, "terms", TERMS, case) if case.forms in TERMS else None
    return Yardstick(recurrence, case.inputs, case.gates, case.scale, NEIGHBOURS, terms)


def instruction_sets(backend: str) -> Iterator[str]:
    """Those of this machine for a native backend, each in use when its turn comes; else one that has no name."""
    if not backend.startswith("cpp"):
        yield ""
        return
    chosen = native.instruction_set()
    for name in native.usable_instruction_sets():
        native.use_instruction_set(name)
        yield name
    native.use_instruction_set(str(chosen))


def outputs(form: Callable, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Without gradients, which takes other paths than with them."""
    with torch.no_grad():
        return {f"output {i}": o for i, o in enumerate(x for x in flatten(form(**inputs)) if is_float(x))}


def misses(op: str, seed: int, only: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Each form of a case, "cpp avx2", and what it misses. only: one backend."""
    case = OPS[op](Draw(op, seed))
    measure = yardstick(case)
    for backend in ops.usable(case.forms):
        if backend == "reference" or only not in (None, backend):
            continue
        form = partial(case.function, backend=backend)
        for name in instruction_sets(backend):
            missed = measure.misses(outputs_and_grads(form, case.inputs, case.scale))
            missed += measure.misses(outputs(form, case.inputs))
            yield f"{backend} {name}".strip(), list(map(str, missed))


def report(done: int, total: int, start: float, missed: int) -> None:
    """One line that replaces the one before."""
    seconds = time.monotonic() - start
    left = seconds / done * (total - done)
    print(
        f"\r{done} of {total} cases, {missed} missed, {done / seconds:.0f}/s, {left:.0f} s left ",
        end="",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="of every op")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--op", choices=OPS, help="this op only")
    parser.add_argument("--backend", help="this backend only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(1)
    todo = [(op, seed) for seed in range(args.seed, args.seed + args.cases) for op in ([args.op] if args.op else OPS)]
    counts, found, start, last = Counter(), [], time.monotonic(), -math.inf
    for done, (op, seed) in enumerate(todo, 1):
        for form, missed in misses(op, seed, args.backend):
            counts[f"{op} {form}"] += 1
            if missed:
                found.append({"op": op, "seed": seed, "form": form, "missed": missed})
                if not args.json:
                    print(f"\r--op {op} --seed {seed} --cases 1: {form}: {'; '.join(missed)}", flush=True)
        if time.monotonic() - last > 1 or done == len(todo):
            last = time.monotonic()
            report(done, len(todo), start, len(found))
    print(file=sys.stderr)
    if args.json:
        print(json.dumps({"cases": counts, "misses": found, "seconds": time.monotonic() - start}))
    else:
        print("\n".join(f"{count:8d}  {form}" for form, count in sorted(counts.items())))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
