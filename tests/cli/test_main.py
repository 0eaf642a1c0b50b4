import json
import math
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from gated_deltanet import cli
from gated_deltanet.cli.doctor import Doctor
from gated_deltanet.cli.output import print_json, print_table
from gated_deltanet.files import finite

MANY_LINES = 100_000  # more than a pipe holds


def python(code: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def raising(error: BaseException):
    def run(self):
        raise error

    return run


def test_help_names_the_verbs_and_imports_nothing_slow():
    code = "import sys; from gated_deltanet import cli\ntry: cli.main(['--help'])\nfinally: print(*sys.modules)"
    out, _ = python(code, text=True).communicate()
    text, _, modules = out.strip().rpartition("\n")
    assert all(verb in text for verb in cli.VERBS)
    assert not {"torch", "numpy", "rich", "transformers"} & set(modules.split())


def test_version():
    command = [sys.executable, "-m", "gated_deltanet", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"gated-deltanet {version('gated-deltanet')}\n"


@pytest.mark.parametrize("verb", cli.VERBS.values(), ids=cli.VERBS)
def test_example_in_the_help_of_a_verb_parses(verb):
    *_, example = verb.__doc__.strip().splitlines()
    assert example.strip().startswith("Example: gdn ")
    assert isinstance(cli.parse(shlex.split(example)[2:]), verb)


@pytest.mark.parametrize(("args", "help"), [([], "doctor"), (["nonsense"], "doctor"), (["doctor", "--jsn"], "--json")])
def test_mistyped_command_exits_2_and_says_what_there_is(args, help, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(args)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert help in captured.err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("L is 0\n  but must be positive"), "L is 0 but must be positive"),
        (FileNotFoundError(2, "No such file or directory", "corpus.txt"), "No such file or directory: corpus.txt"),
        (FileNotFoundError("no checkpoint in runs/a"), "no checkpoint in runs/a"),
        (ModuleNotFoundError("needs gated-deltanet[hf]"), "needs gated-deltanet[hf]"),
    ],
)
def test_error_the_user_can_mend_is_one_line(error, line, monkeypatch, capsys):
    monkeypatch.setattr(Doctor, "run", raising(error))
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == f"gdn: error: {line}\n"


def test_error_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(Doctor, "run", raising(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        cli.main(["doctor"])


def test_interruption_is_quiet(monkeypatch, capsys):
    monkeypatch.setattr(Doctor, "run", raising(KeyboardInterrupt()))
    assert cli.main(["doctor"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lines", [1, MANY_LINES])
def test_reader_that_stops_reading_is_no_error(lines):
    verb = f"cli.Doctor.run = lambda self: [input(), *map(print, range({lines}))] and None"
    process = python(f"import sys; from gated_deltanet import cli; {verb}; sys.exit(cli.main(['doctor']))", stdin=-1)
    assert process.stdout is not None
    process.stdout.close()  # before the verb, which waits for a line, prints
    _, err = process.communicate(b"\n")
    assert err == b""
    assert process.returncode == 1


def test_table_prints_brackets_and_notes_as_they_are(capsys):
    print_table("T", ["shape", "n"], [("[B, L]", 3), ("[red]", math.inf)], notes=["a [note]"])
    out = capsys.readouterr().out
    assert all(text in out for text in ("T", "shape", "[B, L]", "3", "[red]", "inf", "a [note]"))


def test_json_has_null_for_what_is_not_finite(capsys):
    print_json({"a": math.nan, "b": [1.5, -math.inf, (2, math.inf)], "c": {"d": True, "e": "NaN"}})
    expected = {"a": None, "b": [1.5, None, [2, None]], "c": {"d": True, "e": "NaN"}}
    assert json.loads(capsys.readouterr().out) == expected
    assert finite(expected) == expected
