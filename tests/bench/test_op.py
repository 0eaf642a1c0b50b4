import sys
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from gated_deltanet import matmul, ops
from gated_deltanet.bench import cases, op_baselines, op_races, peers, timing
from gated_deltanet.bench.op_races import Entry, Settings
from gated_deltanet.interop import fla as interop_fla
from gated_deltanet.ops import gpu

op: Any = import_module("gated_deltanet.bench.op")  # the module: its function has the same name

TINY = Settings(lengths=(1, 5), dtypes=("float32",), heads=2, d_k=4, d_v=6, tables=("lengths",), seconds=0, quick=True)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(timing, "TURN", 0)
    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(matmul, "SIZE", 16)


def installed_or_skip(peer: str) -> str:
    if peer not in peers.installed():
        pytest.skip(f"{' and '.join(peers.NEEDS[peer])} not installed, or too old")
    return peer


def test_every_usable_backend_and_the_step_are_measured():
    rows = op.measure(TINY)
    usable = [name for name, reason in ops.backends()["gated_delta_rule"].items() if reason is None]
    assert [row["who"] for row in rows if row["what"] == "step"] == ["step_", *usable]
    assert [row["who"] for row in rows if row["what"] == "forward"] == usable
    assert [row["who"] for row in rows if row["what"] == "forward+backward"] == usable
    for row in rows:
        assert row["us"] > 0
        assert row["share_of_sgemm"] == row["gflops"] / row["sgemm_gflops"]
        assert row["peak_bytes"] is None or row["peak_bytes"] >= 0


def test_figures_are_of_useful_work():
    entry = Entry("chunkwise", "forward+backward", "float32", L=10, H=2, d_k=3, d_v=5, threads=1)
    row = op.row(entry, seconds=1e-3, sgemm_gflops=1.0, peak_bytes=None)
    assert row["us"] == pytest.approx(50)
    assert row["gflops"] == row["share_of_sgemm"] == pytest.approx(18 * 3 * 5 * 20 / 1e-3 / 1e9)


def test_backends_for_study_are_for_short_sequences_unless_named():
    long = TINY._replace(lengths=(op_races.SHORT + 1,))
    for names in ({entry.who for entry in race.entries} for race in op_races.races(long)):
        assert "chunkwise" in names
        assert not names & {"reference", "parallel"}
    for race in op_races.races(long._replace(backends=("reference",))):
        assert [entry.who for entry in race.entries] == ["reference"]


def test_every_table_has_its_comparison(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # the cores are taken by other tests
    settings = TINY._replace(threads=2, backends=("chunkwise",), tables=op_races.TABLES)
    races = op_races.races(settings)
    assert [*dict.fromkeys(race.table for race in races)] == list(op_races.TABLES)
    of_rule = [entry for race in races for entry in race.entries if isinstance(entry, Entry)]
    assert {(e.H, e.d_k, e.d_v) for e in of_rule} >= {(16, 32, 32), (9, 200, 400)}
    rows = op.measure(settings._replace(tables=("threads", "growth")))
    assert [(row["threads"], "speedup" in row) for row in rows[:2]] == [(1, False), (2, True)]
    assert [(row["L"], "growth" in row) for row in rows[-2:]] == [(128, False), (512, True)]


def test_memory_is_kept_when_asked_for(monkeypatch):
    monkeypatch.setattr(op.memory, "no_page_faults", lambda: nullcontext(True))
    settings = TINY._replace(lengths=(1,), backends=())
    assert [row["page_faults_kept_out"] for row in op.measure(settings)] == [False]
    assert [row["page_faults_kept_out"] for row in op.measure(settings._replace(keep_memory=True))] == [True]


def test_each_entry_has_its_threads_and_the_caller_gets_his_back():
    before, seen = torch.get_num_threads(), []
    with op.threads_restored():
        for threads in (2, 3):
            op.with_threads(threads, lambda: seen.append(torch.get_num_threads()))()
    assert seen == [2, 3]
    assert torch.get_num_threads() == before


def test_default_run_is_what_the_documentation_says():
    lengths = {race.entries[0].L for race in op_races.races(Settings(tables=("lengths",)))}
    assert lengths == {1, 64, 512, 2048, 4096, 16384}
    assert {e.L for race in op_races.races(Settings(tables=("growth",))) for e in race.entries} == {2048, 16384}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtypes": ("float17",)}, "--dtypes has float17, expected some of: float32, bfloat16"),
        ({"lengths": (64, 0)}, "--lengths has 0, expected at least 1"),
        ({"d_k": 0}, "--d-k has 0, expected at least 1"),
        ({"threads": -1}, "--threads has -1"),
        (
            {"tables": ("all",)},
            "--tables has all, expected some of: lengths, shapes, threads, growth, attention, selective_scan",
        ),
        ({"backends": ("cuda",)}, "--backends has cuda, expected some of: reference"),
        ({"peers": ("nobody",)}, "--peers has nobody"),
        ({"seconds": float("nan")}, "--seconds is nan"),
        ({"dtypes": ()}, "nothing is left to measure"),
    ],
)
def test_wrong_setting_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        op_races.check(TINY._replace(**wrong))


def test_unusable_backend_is_left_out_and_says_why_when_named(monkeypatch):
    monkeypatch.setattr(ops, "backends", lambda: {"gated_delta_rule": {"chunkwise": None, "cpp": "no compiler"}})
    assert [race.entries[0].who for race in op_races.races(TINY._replace(lengths=(5,)))] == ["chunkwise"] * 2
    with pytest.raises(ValueError, match="--backends has cpp, which cannot be used: no compiler"):
        op_races.check(TINY._replace(backends=("cpp",)))


def test_what_would_not_fit_in_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(op, "available_bytes", lambda: 2**30)
    entry = Entry("chunkwise", "forward", "float32", L=4096, H=2, d_k=4, d_v=6, threads=1)
    shorter = {**entry._replace(L=1024)._asdict(), "peak_bytes": 2**30}
    assert op.too_large(entry, [shorter]) == "needs some 4.0 GiB of memory"
    assert op.too_large(entry, [{**shorter, "peak_bytes": 2**20}]) is None
    assert op.too_large(entry, [{**shorter, "who": "parallel"}]) is None
    (row,) = op.run([entry], seconds=0, earlier=[shorter])
    assert row["left_out"]


def test_peer_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None)
    assert peers.installed() == []


def test_peer_of_a_version_without_the_function_is_left_out(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(peers, "find_spec", lambda package: True)
    monkeypatch.setattr(peers, "import_module", missing)
    assert peers.installed() == []


@pytest.mark.parametrize("peer", peers.NEEDS)
def test_peer_is_measured_and_compared_with(peer):
    rows = op.measure(TINY._replace(peers=(installed_or_skip(peer),), backends=("chunkwise",)))
    of_peer = [row for row in rows if row["who"] == peer]
    assert {row["what"] for row in of_peer} == set(peers.load(peer).CALLS)
    for row in rows:
        compared = row["who"] != peer and row["what"] in peers.load(peer).CALLS
        assert list(row["times_faster_than"]) == ([peer] if compared else [])


@pytest.mark.parametrize("who", ["step_", "chunkwise", *peers.NEEDS])
def test_every_decoder_decodes(who):
    inputs = op.inputs_of(op.STREAM, 2, 4, 6, "float32")
    _, expected = ops.gated_delta_rule(**inputs, backend="reference")
    peer = who in peers.NEEDS and peers.load(installed_or_skip(who))
    call = peer.CALLS["step"](inputs) if peer else op.ours(who, "step", inputs)
    states = [call() for _ in range(cases.RESET + op.STREAM)]
    torch.testing.assert_close(states[-1], expected)  # once round, after starting anew


def test_transformers_computes_the_same_forward_and_backward():
    peer = peers.load(installed_or_skip("transformers"))
    inputs = op.inputs_of(70, 2, 4, 6, "float32")
    expected = ops.gated_delta_rule(**inputs, backend="reference")
    torch.testing.assert_close(peer.CALLS["forward"](inputs)(), expected)
    dq, *others = peer.CALLS["forward+backward"](inputs)()
    dq_ours, *others_ours = cast(tuple, op.ours("reference", "forward+backward", inputs)())
    torch.testing.assert_close([dq * 4**0.5, *others], [dq_ours, *others_ours])  # it scales q by d_k^-1/2 itself


def test_onnxruntime_computes_the_same():
    peer = peers.load(installed_or_skip("onnxruntime"))
    inputs = op.inputs_of(70, 2, 4, 6, "float32")
    o, state = peer.CALLS["forward"](inputs)().binding.copy_outputs_to_cpu()
    expected_o, expected_state = ops.gated_delta_rule(**inputs, backend="reference")
    torch.testing.assert_close(torch.from_numpy(o).view_as(expected_o), expected_o)
    torch.testing.assert_close(torch.from_numpy(state), expected_state)


def test_attention_is_measured_beside_torchs_and_decoding_beside_reading(monkeypatch):
    monkeypatch.setattr(op_baselines, "flex_compiles", lambda: False)  # it takes seconds
    rows = op.measure(TINY._replace(tables=("attention", "selective_scan"), backends=None))
    whole = [row for row in rows if row["op"] == "attention" and row["what"] == "forward+backward"]
    assert {row["who"] for row in whole} == {*ops.usable("attention")} - {"reference"} | {"torch", "torch, mask"}
    assert {(row["window"], row["documents"]) for row in whole} == {(None, 1), (16, 1), (None, 16)}
    steps = [row for row in rows if row["what"] == "step"]
    assert all(row["share_of_reading"] > 0 for row in steps if row["who"] != "read")
    assert {row["who"] for row in rows if row["op"] == "selective_scan"} == {*ops.usable("selective_scan")} - {
        "reference"
    }
    flops = next(row["gflops"] * row["us"] for row in whole if row["documents"] == 1 and row["window"] is None)
    assert flops == pytest.approx(3.5 * 4 * 64 * (32 * 33 / 2) * 8 / (32 * 8) / 1e3)  # of L = 32, a token and head


@pytest.mark.parametrize("documents", [1, 16])
@pytest.mark.parametrize("window", [None, 5])
def test_torchs_attention_is_asked_for_the_same(documents, window):
    entry = op_baselines.OpEntry("attention", "sdpa", "forward", "float32", 64, 2, 4, 1, window, documents)
    ours = cast(Any, op_baselines.call_of(entry)())
    for who in ("torch, mask", "torch") if documents == 1 and window is None else ("torch, mask",):
        theirs = cast(Any, op_baselines.call_of(entry._replace(who=who))())
        torch.testing.assert_close(theirs.transpose(1, 2), ours)


@pytest.fixture
def pretended_gpu(monkeypatch):
    """A GPU that is the processor. Returns how often it was waited for."""
    product, waits = matmul.product, []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: waits.append(device))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**40, 2**40))
    monkeypatch.setattr(op, "moved", lambda x, device: x)
    monkeypatch.setattr(op.memory, "peak_bytes_on_gpu", lambda call, device: 7)
    monkeypatch.setattr(matmul, "product", lambda device: product())
    monkeypatch.setattr(op_races, "usable", lambda device: ["chunkwise"])
    return waits


def test_on_a_gpu_every_time_is_waited_for_and_its_memory_is_counted(pretended_gpu):
    document = op.op(**{**TINY._asdict(), "device": "cuda", "tables": None, "peers": (), "lengths": (1, 5)})
    assert {row["table"] for row in document["rows"]} == set(op_races.GPU_TABLES)
    assert {row["device"] for row in document["rows"]} == {"cuda"}
    assert {row["peak_bytes"] for row in document["rows"]} == {7}
    assert len(pretended_gpu) >= 2 * len(document["rows"])


def test_what_is_measured_on_a_processor_only_is_refused_on_a_gpu(pretended_gpu):
    with pytest.raises(ValueError, match="--tables has attention, expected some of: lengths, shapes, growth"):
        op_races.check(TINY._replace(device="cuda", tables=("attention",)))


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device is cuda, but torch finds no GPU"):
        op_races.check(TINY._replace(device="cuda"))
    with pytest.raises(ValueError, match="--device has tpu, expected some of: cpu, cuda"):
        op_races.check(TINY._replace(device="tpu"))


def test_fla_is_a_peer_on_a_gpu_only_and_computes_the_same(monkeypatch):
    """With a stand-in that has its signatures."""
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", interop_fla)
    monkeypatch.setattr(peers, "find_spec", lambda package: True)
    monkeypatch.setattr(gpu, "fla_unusable", lambda: None)
    assert "fla" not in peers.installed("cpu")
    assert "fla" in peers.installed("cuda")
    peer, inputs = peers.load("fla"), op.inputs_of(op.STREAM, 2, 4, 6, "float32")
    expected = ops.gated_delta_rule(**inputs, backend="reference")
    torch.testing.assert_close(peer.CALLS["forward"](inputs)(), expected)
    gradients = peer.CALLS["forward+backward"](inputs)()
    torch.testing.assert_close(gradients, op.ours("reference", "forward+backward", inputs)())
    decode = peer.CALLS["step"](inputs)
    torch.testing.assert_close([decode() for _ in range(op.STREAM)][-1], expected[1])
    monkeypatch.delitem(sys.modules, "gated_deltanet.bench.peers.of_fla")
