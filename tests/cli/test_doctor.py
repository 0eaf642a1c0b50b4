import json
import re
from importlib.metadata import requires

import pytest

from gated_deltanet import cli, ops
from gated_deltanet.bench import machine
from gated_deltanet.ops import gpu

BACKENDS = {"gated_delta_rule": {"reference": None, "native": "no compiler"}, "short_conv": {"reference": None}}

ARM = """processor : 0
BogoMIPS  : 50.00
Features  : fp asimd asimdhp sve bf16
CPU part  : 0xd40

processor : 1
Features  : none
"""


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    monkeypatch.setattr(ops, "backends", lambda: BACKENDS, raising=False)


def test_json_is_one_document_with_the_described_facts(capsys):
    assert cli.main(["doctor", "--json"]) is None
    captured = capsys.readouterr()
    assert json.loads(captured.out) == machine.describe() | {"accelerated": None}
    assert captured.err == ""


def test_tables_show_every_backend_and_why_it_is_not_usable(capsys):
    assert cli.main(["doctor"]) is None
    lines = capsys.readouterr().out.splitlines()
    assert any("native" in line and "no: no compiler" in line for line in lines)
    assert any("short_conv" in line and "yes" in line for line in lines)


def test_what_auto_takes_on_a_gpu_is_said_with_the_reason(monkeypatch, capsys):
    cli.main(["doctor"])
    assert "triton is not imported" in " ".join(capsys.readouterr().out.split())
    verdict = gpu.Verdict("Some GPU", "sm_90", "triton", "compiled for sm_90")
    monkeypatch.setattr(gpu, "verdicts", lambda: [verdict])
    cli.main(["doctor"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Some GPU, sm_90" in out
    assert "compiled for sm_90" in out


def test_missing_package_is_shown_with_the_extra_that_brings_it(monkeypatch, capsys):
    monkeypatch.setattr(machine, "version_of", lambda package: None)
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert all(f"gated-deltanet[{extra}]" in out for extra in machine.EXTRA_OF.values())


def test_missing_compiler_is_said(monkeypatch, capsys):
    monkeypatch.setattr(machine, "compiler", lambda: None)
    cli.main(["doctor"])
    assert "none found" in capsys.readouterr().out


def test_extras_are_those_of_the_package():
    requirements = [line.replace("'", '"') for line in requires("gated-deltanet") or []]
    for package, extra in machine.EXTRA_OF.items():
        assert any(line.startswith(package) and f'extra == "{extra}"' in line for line in requirements)


def test_every_optional_package_is_listed():
    """Of the extras for users: what tests and development need is not optional to anybody else."""
    lines = [line.replace("'", '"') for line in requires("gated-deltanet") or [] if "extra ==" in line]
    optional = [line for line in lines if not line.endswith(('"test"', '"dev"')) and "gated-deltanet[" not in line]
    assert {re.split(r"[^\w-]", line)[0] for line in optional} == set(machine.EXTRA_OF)


def test_absent_package_has_no_version():
    assert machine.version_of("no-such-package-anywhere") is None


def test_arm_processor_is_read_from_its_features(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    machine.CPUINFO.write_text(ARM)
    cpu = machine.describe_cpu()
    assert cpu["flags"] == ["asimd", "asimdhp", "bf16", "sve"]
    assert cpu["model"]


def test_processor_that_cannot_be_read_still_has_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "absent")
    cpu = machine.describe_cpu()
    assert cpu["flags"] == []
    assert cpu["model"]
