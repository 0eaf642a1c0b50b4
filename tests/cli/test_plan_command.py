import json
import shlex

import pytest

from gated_deltanet import cli, matmul
from gated_deltanet.cli.plan import Plan


def test_plan_prints_a_table_or_json(capsys):
    command = "plan gdn-1.3b --gpus 64 --gpu h100 --tokens 100B"
    assert cli.main(shlex.split(command)) is None
    out = capsys.readouterr().out
    assert all(word in out for word in ("parameters", "memory", "longest length", "hours", "MFU", "Fig. 3"))
    cli.main([*shlex.split(command), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["options"]["gpus"] == 64
    assert document["steps"] == 190735
    assert document["fits"] is True


def test_plan_for_this_machine_is_compared_with_a_step(capsys, monkeypatch):
    monkeypatch.setattr(matmul, "SIZE", 64)
    cli.main(shlex.split("plan gdn-nano --here --measure --length 64 --batch-tokens 256 --tokens 1K"))
    out = capsys.readouterr().out
    assert all(word in out for word in ("this machine", "measured", "predicted", "GFLOP/s"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("gdn-1.3 --gpus 8", "perhaps gdn-1.3b"),
        ("gdn-1.3b --tokens 100X", "--tokens has '100X', expected a number such as 15B"),
        ("gdn-1.3b --length zero", "--length has 'zero', expected a number such as 4096"),
        ("gdn-1.3b --gpus 0", "--gpus is 0, expected at least 1"),
        ("gdn-1.3b --parallel tp", "--parallel is 'tp', expected fsdp, ddp or hsdp:RxS"),
        ("gdn-1.3b --measure", "expected --here with it"),
        ("gdn-1.3b --here --dtype int8", "--dtype is 'int8', expected float32 or bfloat16"),
    ],
)
def test_wrong_option_is_named(options, message, capsys):
    assert cli.main(["plan", *shlex.split(options)]) == 2
    assert message in capsys.readouterr().err


def test_example_in_the_help_parses():
    *_, example = (Plan.__doc__ or "").strip().splitlines()
    assert isinstance(cli.parse(shlex.split(example)[2:]), Plan)
