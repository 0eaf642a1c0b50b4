"""Cases of every native kernel for tests/native/driver.cpp: recorded calls, and what should come of them."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from native_recording import record, write
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import one_hot

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "ops")]  # the inputs and the budget are the tests'

import test_attention as softmaxes  # noqa: E402
import test_gated_delta_rule as rules  # noqa: E402
import test_gated_rms_norm as norms  # noqa: E402
import test_linear as linears  # noqa: E402
import test_linear_attention as attentions  # noqa: E402
import test_selective_scan as scans  # noqa: E402
import test_short_conv as convs  # noqa: E402
import test_swiglu as mlps  # noqa: E402

from gated_deltanet import ops  # noqa: E402
from gated_deltanet.bench.accuracy import ZERO, outputs_and_grads, round_operands  # noqa: E402
from gated_deltanet.bench.budget import Yardstick  # noqa: E402
from gated_deltanet.models import decoder_calls  # noqa: E402
from gated_deltanet.ops import native, rotary  # noqa: E402
from gated_deltanet.ops.attention import cpp as cpp_attention  # noqa: E402
from gated_deltanet.ops.gated_delta_mix import BACKENDS as MIXES  # noqa: E402
from gated_deltanet.ops.gated_delta_mix.reference import gates as reference_gates  # noqa: E402
from gated_deltanet.ops.gated_delta_rule import cpp_recurrent  # noqa: E402
from gated_deltanet.ops.linear import FORMATS  # noqa: E402
from gated_deltanet.ops.linear import cpp as linear_cpp  # noqa: E402
from gated_deltanet.ops.linear_cross_entropy import cpp as losses  # noqa: E402

ENDS = torch.tensor([0, 0, 5, 5, 70, 71, 200, 203, 203])  # no token, one, and more than lie between checkpoints
PACKED = {"B": 1, "L": int(ENDS[-1]), "N": len(ENDS) - 1}
HEADS = {  # whole and partial vectors, panels, chunks and intervals between checkpoints
    "narrow": {"B": 2, "L": 37, "H": 2, "H_v": 6, "d_k": 5, "d_v": 7},
    "tails": {"B": 1, "L": 131, "H": 1, "H_v": 2, "d_k": 40, "d_v": 80},
    "wide": {"B": 1, "L": 33, "H": 1, "H_v": 1, "d_k": 200, "d_v": 400},
    "one token": {"B": 3, "L": 1, "H": 1, "H_v": 2, "d_k": 20, "d_v": 36},
}


class Case(NamedTuple):
    """form(**inputs) calls kernels, and reference(**inputs) gives what they should."""

    name: str
    form: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: dict[str, Any]
    gates: tuple[str, ...] = ()  # inputs whose gradients may err more
    training: bool = True  # also backward; in inference kernels are called with other layouts


def of_op(
    op: str, title: str, inputs: dict[str, Any], gates: tuple[str, ...] = (), backend: str = "cpp", **options
) -> Case:
    form, reference = (partial(getattr(ops, op), backend=name, **options) for name in (backend, "reference"))
    return Case(f"{op}, {backend}, {title}", form, reference, inputs, gates)


def within_wider(x: Tensor) -> Tensor:
    """x as a part of a wider projection, whose rows are not aligned."""
    return torch.cat([x[..., :3], x], -1)[..., 3:]


def forgetful(inputs: dict[str, Any]) -> dict[str, Any]:
    """α = 0 at some tokens of all but the first head."""
    inputs["log_alpha"][:, 20::31, 1:] = -torch.inf
    return inputs


def rule_cases(backend: str) -> Iterator[Case]:
    case = partial(of_op, "gated_delta_rule", gates=rules.GATES, backend=backend)
    for title, sizes in HEADS.items():
        yield case(title, rules.random_inputs(**sizes, beta_max=2.0))
    yield case("packed", rules.random_inputs(**PACKED, H=1, H_v=3, d_k=12, d_v=20), cu_seqlens=ENDS)
    yield case("forgetful", forgetful(rules.random_inputs(L=90, d_k=19, d_v=33)))
    yield case("no decay, no state", rules.random_inputs(d_k=9, d_v=17) | {"log_alpha": None, "state": None})
    views = case("part of a wider projection", rules.random_inputs(L=45, d_k=18, d_v=21))
    yield views._replace(form=lambda q, k, v, **x: views.form(*map(within_wider, (q, k, v)), **x))
    yield views._replace(name=f"gated_delta_rule, {backend}, inference", training=False)
    yield Case(
        f"gated_delta_rule, {backend}, normalised",
        lambda **x: MIXES[backend](*x.values(), None),
        lambda **x: MIXES["reference"](*x.values(), None),
        rules.random_inputs(L=75, d_k=22, d_v=11),
        rules.GATES,
    )


def step_cases() -> Iterator[Case]:
    """One token of each of five sequences, the state in place."""
    inputs = rules.random_inputs(B=5, L=1, d_k=21, d_v=37)

    def step(normalise, **x):
        q, k, v, log_alpha, beta = (x[name][:, 0] for name in ("q", "k", "v", "log_alpha", "beta"))
        run = cpp_recurrent.prepare_step(q, v, x["state"], normalise).run
        run(q, k, v, log_alpha, beta, x["state"], x["state"])

    for title, reference in (
        ("step", rules.BACKENDS["reference"]),
        ("step, normalised", MIXES["reference"]),
    ):
        yield Case(
            f"gated_delta_rule, {title}",
            partial(step, title != "step"),
            lambda reference=reference, **x: reference(*x.values(), None),
            inputs,
            training=False,
        )


def attention_cases() -> Iterator[Case]:
    case = partial(of_op, "linear_attention", gates=attentions.GATES)
    for decay in ("scalar", "per key"):
        for title, sizes in HEADS.items():
            yield case(f"{title}, {decay}", attentions.random_inputs(decay, **sizes))
        packed = attentions.random_inputs(decay, **PACKED, H=1, H_v=3, d_k=12, d_v=20)
        yield case(f"packed, {decay}", packed, cu_seqlens=ENDS)
        yield case(f"forgetful, {decay}", forgetful(attentions.random_inputs(decay, L=90, d_k=19, d_v=33)))
        inference = case(f"inference, {decay}", attentions.random_inputs(decay, L=45, d_k=18, d_v=21))
        yield inference._replace(training=False)
    yield case("no decay", attentions.random_inputs("none", d_k=9, d_v=17))


def softmax_cases() -> Iterator[Case]:
    def case(title: str, inputs: dict[str, Any], **options) -> Case:
        form, reference = (partial(attend, backend=name, **options) for name in ("cpp", "reference"))
        return Case(f"attention, {title}", form, reference, inputs)

    def attend(q, k, v, k_cache=None, v_cache=None, length=None, **options):
        cache = None if k_cache is None or v_cache is None else ops.KVCache(k_cache, v_cache, torch.tensor(length))
        return ops.attention(q, k, v, cache, keep_cache=False, **options)[0]

    draw = softmaxes.random_inputs
    yield case("narrow", draw(L=37, H=3, H_kv=1, d=5, d_v=7))
    yield case("tails, positions", draw(B=1, L=131, H=2, H_kv=1, d=40, d_v=80), rope_theta=100.0)
    yield case("window", draw(B=1, L=300, H=1, H_kv=1, d=24, d_v=36), window=70)
    yield case("keys in parts", draw(B=1, L=700, H=1, H_kv=1, d=8, d_v=8))
    packed = draw(B=1, L=PACKED["L"], N=PACKED["N"], H=2, H_kv=1, W=30, d=12, d_v=20)
    yield case("packed, behind a cache", packed, cu_seqlens=ENDS, length=[0, 3, 30, 7, 1, 40, 9, 2], window=30)
    yield case("inference", draw(L=45, d=18, d_v=21))._replace(training=False)
    yield step_of_attention(draw(B=5, L=1, W=300, d=20, d_v=36))


def step_of_attention(inputs: dict[str, Any]) -> Case:
    """One token of each of five sequences, behind caches of unequal length."""
    length = torch.tensor([0, 1, 17, 130, 299])

    def step(q, k, v, k_cache, v_cache):
        cpp_attention.step_(q[:, 0], k[:, 0], v[:, 0], ops.KVCache(k_cache, v_cache, length), None)

    def reference(q, k, v, k_cache, v_cache):
        cache = ops.KVCache(k_cache, v_cache, length)
        return ops.attention(q, k, v, cache, keep_cache=False, backend="reference")[0]

    return Case("attention, step", step, reference, inputs, training=False)


def scan_cases() -> Iterator[Case]:
    case = partial(of_op, "selective_scan", gates=scans.GATES)
    yield case("narrow", scans.random_inputs(L=37, D=5, n=3))
    yield case("in parts", scans.random_inputs(L=131, D=141, n=16))
    yield case("packed", scans.random_inputs(batch=1, L=PACKED["L"], N=PACKED["N"], D=21, n=7), cu_seqlens=ENDS)
    still = scans.random_inputs(L=90, D=19, n=4)
    still["dt"][:, 20::31, 1:] = 0
    yield case("no step at some tokens", still)
    yield case("inference", scans.random_inputs(L=11, D=35, n=5))._replace(training=False)


def conv_cases() -> Iterator[Case]:
    case = partial(of_op, "short_conv")
    for K in (1, 2, 4, 9):
        yield case(f"{K} taps", convs.random_inputs(L=37, D=29, K=K))
    yield case("no activation, no bias", convs.random_inputs(D=18) | {"bias": None}, activation=None)
    yield case("packed", convs.random_inputs(**PACKED, D=35), cu_seqlens=ENDS)
    yield case("blocks of tokens and channels", convs.random_inputs(L=131, D=2048 + 21))
    yield case("inference", convs.random_inputs(L=3, D=31))._replace(training=False)


def row_cases() -> Iterator[Case]:
    """The ops on rows."""
    for d in (1, 7, 200, 3000):
        yield of_op("gated_rms_norm", f"{d} wide", norms.random_inputs(2, 11, 3, d=d))
    yield of_op("gated_rms_norm", "many rows", norms.random_inputs(1501, d=13))
    yield of_op("gated_rms_norm", "no gate", norms.random_inputs(45, d=50) | {"gate": None})
    yield of_op("gated_rms_norm", "inference", norms.random_inputs(5, d=50))._replace(training=False)
    for shape in ((17,), (2, 25, 3), (2, 8205), (700, 50)):
        yield of_op("swiglu", "×".join(map(str, shape)), mlps.random_inputs(*shape))
    yield of_op("swiglu", "inference", mlps.random_inputs(5, 83))._replace(training=False)


def loss_cases() -> Iterator[Case]:
    """The losses of rows, and the gradient in place of the logits."""

    def reference(logits, targets, dlosses):
        p, log_p = logits.softmax(1), logits.log_softmax(1)
        of_target = one_hot(targets, logits.shape[1])
        return -(log_p * of_target).sum(1), (p - of_target) * dlosses[:, None].to(p.dtype)

    def form(logits, targets, dlosses):
        return losses.of_rows(logits, targets, dlosses.float())

    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    for rows, V in ((1, 2), (5, 3), (19, 67), (3, 1000), (300, 128)):
        inputs = {"logits": 3 * normal(rows, V), "targets": torch.arange(rows) * 7 % V, "dlosses": normal(rows)}
        yield Case(f"linear_cross_entropy, {rows}×{V}", form, reference, inputs, training=False)


def linear_cases() -> Iterator[Case]:
    """Weights as they are, transposed and packed: one row, few and many, in groups of inputs and parts of blocks."""
    draw = linears.random_inputs
    for M, N, K in ((1, 33, 50), (3, 70, 300), (8, 40, 64), (19, 65, 600), (250, 9, 7)):
        inputs = draw(M, N, K)
        yield of_op("linear", f"{M}×{N}×{K}", inputs)._replace(training=False)
        weight, others = inputs["weight"], {name: x for name, x in inputs.items() if name != "weight"}
        turned = {"x": inputs["x"], "w": weight.mT.contiguous()}
        yield Case(f"linear, transposed, {M}×{N}×{K}", of_transposed, lambda x, w: x @ w, turned, training=False)
        for format in FORMATS:
            yield packed_linear(f"linear, {format}, {M}×{N}×{K}", ops.pack(weight, format), others)
        few = {name: inputs[name] for name in ("x", "weight", "bias")}
        yield Case(f"linear, few rows, {M}×{N}×{K}", linear_cpp.few_rows, torch_linear, few, training=False)
    weight = draw(1, 9, 7)["weight"]
    for format in FORMATS:
        packed = ops.pack(weight, format)
        yield unpacking(f"linear, unpacked {format}", packed, None)
        yield unpacking(f"linear, unpacked {format}, rows", packed, torch.tensor([8, 0, 3, 8]))


def unpacking(name: str, packed: ops.PackedWeight, rows: Tensor | None) -> Case:
    """zero: what makes a function of it, as all references are."""

    def form(zero):
        return linear_cpp.unpack(packed.data, packed.format, *packed.shape, rows)

    def reference(zero):
        return packed.to_dense()[slice(None) if rows is None else rows] + zero

    return Case(name, form, reference, {"zero": torch.zeros(1)}, training=False)


def packed_linear(name: str, packed: ops.PackedWeight, inputs: dict[str, Any]) -> Case:
    of_backend = partial(partial, ops.linear, weight=packed)
    return Case(name, of_backend(backend="cpp"), of_backend(backend="reference"), inputs, training=False)


def of_transposed(x, w):
    kind = f"transposed {str(w.dtype).removeprefix('torch.')}"
    return linear_cpp.product(x.float(), None, None, w, kind, w.shape[1])


def decoding_cases() -> Iterator[Case]:
    """What a decoded token needs between the ops."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0))

    def gates(a, b, A_log, dt_bias):
        call = decoder_calls.Gates(*a.shape, 1, 2.0)
        operands = {"a": a, "b": b, "A_log": A_log, "dt_bias": dt_bias}
        native.point(call, **{n: x.float() for n, x in operands.items()}, y=torch.empty(2, *a.shape))
        native.run("decode_gates", call)

    def both(a, b, A_log, dt_bias):
        return torch.stack(reference_gates(a, b, A_log, dt_bias, 2.0, a.dtype))

    raw = {"a": 3 * normal(5, 7), "b": 3 * normal(5, 7), "A_log": normal(7), "dt_bias": normal(7)}
    yield Case("decoding, gates", gates, both, raw, training=False)

    lengths = torch.tensor([0, 3, 31])

    def turn(x):
        x, turns = x.float().clone(), rotary.table(32, 6, 100.0)
        native.point(call := decoder_calls.Turn(3, 2, 10, 6, 1), lengths=lengths, turns=turns, y=x)
        native.run("decode_turn", call)

    def turned(x):
        part = rotary.rotate(lengths[:, None], 100.0, x[:, None, :, :6])[0][:, 0]
        return torch.cat([part, x[..., 6:]], -1)

    yield Case("decoding, positions", turn, turned, {"x": normal(3, 2, 10)}, training=False)

    def gate(x, z):
        x, z = x.float().clone(), z.float()
        native.point(call := decoder_calls.SigmoidGate(x.numel(), 1), gate=z, y=x)
        native.run("decode_sigmoid_gate", call)

    inputs = {"x": normal(3, 37), "z": 3 * normal(3, 37)}
    yield Case("decoding, gate", gate, lambda x, z: x * z.sigmoid(), inputs, training=False)


def every_case() -> Iterator[Case]:
    for backend in ("cpp", "cpp-recurrent"):
        yield from rule_cases(backend)
    of_ops = (step_cases, attention_cases, softmax_cases, scan_cases, conv_cases, row_cases, loss_cases, linear_cases)
    of_ops += (decoding_cases,)
    for cases in of_ops:
        yield from cases()


def write_case(folder: Path, case: Case, dtype: torch.dtype) -> None:
    inputs = round_operands(case.inputs, dtype)
    run = partial(outputs_and_grads, case.form, inputs) if case.training else partial(case.form, **inputs)
    yardstick = Yardstick(case.reference, inputs, case.gates)
    expected = {
        name: (oracle, yardstick.allowed(name) / max(yardstick.sizes[name], ZERO))
        for name, oracle in yardstick.oracle.items()
        if oracle.numel() and (case.training or name.startswith("output"))
    }
    write(folder / f"{case.name}, {str(dtype).removeprefix('torch.')}.case", record(run), expected)


def write_cases(folder: Path) -> None:
    """One file each, in place of those the folder held."""
    torch.set_num_threads(1)  # the tensors are small
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.case"):
        old.unlink()
    for case in every_case():
        for dtype in (torch.float32, torch.bfloat16):
            write_case(folder, case, dtype)
