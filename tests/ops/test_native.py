"""The library of native kernels as a whole: its structures, threads, processes, and what happens without it."""

import ctypes
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from budget import outputs_and_grads
from test_gated_delta_rule import random_inputs

from gated_deltanet import cli, ops
from gated_deltanet.bench import machine
from gated_deltanet.ops import gated_delta_rule, native
from gated_deltanet.ops.gated_delta_rule import cpp_recurrent

CSRC = Path(__file__).parents[2] / "csrc"
C_TYPES = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}
needs_library = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))


def structures() -> dict[str, list[tuple[str, type]]]:
    """The structures of csrc/api.h: field names and ctypes, in their order."""
    text = re.sub(r"//.*|const ", "", (CSRC / "api.h").read_text())
    found = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        fields = found[name] = []
        for kind, names in re.findall(r"(\w+) ([^;]+);", body):
            for field in names.split(","):
                by_value = native.Rows if kind == "Rows" else C_TYPES.get(kind)
                fields.append((field.strip(" *\n"), ctypes.c_void_p if "*" in field else by_value))
    return found


@pytest.mark.parametrize("name", [x for x in structures() if x != "Token"])  # a token is packed
def test_structures_mirror_the_header(name):
    mirrors = {mirror.__name__: mirror for mirror in ctypes.Structure.__subclasses__()}
    if name not in mirrors:
        pytest.skip(f"no op uses {name} yet")
    assert list(mirrors[name]._fields_) == structures()[name]


def test_interval_of_checkpoints_is_whole_chunks_of_the_kernels():
    (C,) = re.findall(r"constexpr int C = (\d+);", (CSRC / "chunks.h").read_text())
    assert native.CHECKPOINT % int(C) == 0


def test_a_step_packs_the_pointers_that_the_header_names():
    names = [name for name, kind in structures()["Token"] if kind is ctypes.c_void_p]
    assert names == ["q", "k", "v", "log_alpha", "beta", "state", "last_state", "o"]  # the order of `Step.run`
    assert len(cpp_recurrent.pack_token(*range(8))) == ctypes.sizeof(ctypes.c_void_p) * len(names)


def results(seed: int, threads: int) -> dict[str, torch.Tensor]:
    torch.set_num_threads(threads)
    inputs = random_inputs(B=3, L=100, H=2, H_v=4, d_k=20, d_v=30, seed=seed)
    return outputs_and_grads(partial(gated_delta_rule, backend="cpp"), inputs)


def assert_same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    for name, x in some.items():
        assert torch.equal(x, others[name]), name


@needs_library
@pytest.mark.usefixtures("restored_threads")
def test_number_of_threads_may_change_and_changes_nothing():
    expected = results(0, 1)
    for n in (2, 3, 1, 8, 2):
        assert_same(results(0, n), expected)


@needs_library
@pytest.mark.usefixtures("restored_threads")
def test_python_threads_at_once_do_not_disturb_each_other():
    expected = [results(seed, 1) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for n in (1, 2):
            for seed, got in enumerate(pool.map(partial(results, threads=n), [*range(4)] * 5)):
                assert_same(got, expected[seed % 4])


def use_the_same(library: Path, instruction_set: str) -> None:
    native.load(library)
    native.use_instruction_set(instruction_set)


@needs_library
@pytest.mark.usefixtures("restored_threads")
def test_spawned_worker_gives_the_same():
    same = (use_the_same, (Path(native.library()._name), native.instruction_set()))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), *same) as pool:
        assert_same(pool.submit(results, 0, 2).result(timeout=600), results(0, 1))


FORK = """if True:
    import os, pathlib, sys, torch
    from gated_deltanet.ops import gated_delta_rule, native
    native.load(pathlib.Path(sys.argv[1]))
    torch.set_num_threads(2)
    q, k, v = torch.randn(3, 2, 100, 4, 16).mul_(0.1).unbind()
    rule = lambda: gated_delta_rule(q, k, v, None, torch.ones(2, 100, 4), backend="cpp")[0]
    expected = rule()
    torch.mm(torch.randn(500, 500), torch.randn(500, 500))
    if (child := os.fork()) == 0:
        os._exit(0 if torch.equal(rule(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(rule(), expected)
"""


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork on this platform")
def test_forked_child_runs_on_one_thread_and_does_not_hang():
    command = [sys.executable, "-W", "ignore", "-c", FORK, native.library()._name]
    subprocess.run(command, check=True, timeout=600)


@needs_library
def test_unknown_instruction_set_is_not_used():
    before = native.instruction_set()
    assert not native.use_instruction_set("quantum")
    assert native.instruction_set() == before


@pytest.fixture
def without_library(monkeypatch):
    for name in ("_library", "_reason"):
        monkeypatch.setattr(native, name, getattr(native, name))
    native.load(None)


def test_without_library_auto_is_chunkwise(without_library):
    inputs = random_inputs(L=30)
    expected = outputs_and_grads(partial(gated_delta_rule, backend="chunkwise"), inputs)
    assert_same(outputs_and_grads(gated_delta_rule, inputs), expected)


def test_without_library_its_name_is_refused_with_the_reason(without_library):
    with pytest.raises(ValueError, match="gated_delta_rule: backend 'cpp' cannot run: the native library was not bui"):
        gated_delta_rule(**random_inputs(), backend="cpp")
    with pytest.raises(ValueError, match="the native library was not built"):
        native.use_instruction_set("portable")


def test_without_library_doctor_tells_why(without_library, capsys):
    assert "cpp" not in ops.usable("gated_delta_rule")
    assert ops.backends()["gated_delta_rule"]["cpp"] == native.NOT_BUILT
    assert machine.describe()["native"] == {"instruction_set": None, "unusable": native.NOT_BUILT}
    cli.main(["doctor"])
    out = " ".join(capsys.readouterr().out.split())
    assert "native kernels use nothing: the native library was not built" in out


def test_broken_library_is_unusable_and_tells_why(without_library, tmp_path):
    (tmp_path / "libgdn.so").write_text("not a library")
    native.load(tmp_path / "libgdn.so")
    assert str(native.unusable()).startswith("the native library could not be loaded: ")
    assert native.instruction_set() is None
