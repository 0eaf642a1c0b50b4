"""A slice of `make fuzz`: random calls of every op, always the same ones."""

import fuzz_ops
import pytest


@pytest.mark.parametrize("op", fuzz_ops.OPS)
def test_random_calls_are_within_budget(op):
    missed = {f"--seed {seed}: {form}": x for seed in range(8) for form, x in fuzz_ops.misses(op, seed) if x}
    assert not missed


@pytest.mark.parametrize(
    ("op", "seed"),
    [
        ("linear_attention", 102470),  # a state that has decayed by e⁻⁴²: in float32 the sum of log α errs by 2e-6
        ("gated_delta_mix", 101192),  # keys of zeros, whose gradient is 1 / √EPS times that of the rule
        ("gated_delta_mix", 100527),
    ],
)
def test_calls_that_missed_the_budget_once_do_no_more(op, seed):
    assert not [(form, x) for form, x in fuzz_ops.misses(op, seed) if x]


@pytest.mark.parametrize("op", fuzz_ops.OPS)
def test_a_seed_is_always_the_same_call(op):
    one, other = (fuzz_ops.OPS[op](fuzz_ops.Draw(op, 5)) for _ in range(2))
    assert one.scale == other.scale
    for name, x in one.inputs.items():
        assert x is other.inputs[name] or (x.equal(other.inputs[name]) and x.stride() == other.inputs[name].stride())


def test_a_miss_is_reported_with_what_repeats_it(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fuzz_ops.py", "--op", "swiglu", "--seed", "4", "--cases", "2"])
    monkeypatch.setattr(fuzz_ops, "misses", lambda op, seed, only: [("cpp avx2", ["dup: …"] if seed == 5 else [])])
    with pytest.raises(SystemExit, match="1"):
        fuzz_ops.main()
    assert "--op swiglu --seed 5 --cases 1: cpp avx2: dup: …" in capsys.readouterr().out
