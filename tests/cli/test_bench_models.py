import json
import shlex

import pytest

from gated_deltanet import cli, matmul
from gated_deltanet.cli.bench_decode import Decode
from gated_deltanet.cli.bench_train import Train
from gated_deltanet.models.presets import choose

TRAIN = shlex.split("bench train gdn transformer-nano --size nano --shapes 32x2 --rounds 1")
DECODE = shlex.split("bench decode gdn transformer-nano --size nano --context 16 --steps 2 --rounds 1")


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(matmul, "SIZE", 16)


@pytest.mark.parametrize(("command", "name", "column"), [(TRAIN, "train", "MFU"), (DECODE, "decode", "ms/token")])
def test_table_is_printed_and_the_folder_filled(command, name, column, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert cli.main([*command, "--out", str(out)]) is None
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("gdn-nano", "transformer-nano", column))
    assert {file.name for file in out.iterdir()} == {f"{name}.json", f"{name}.md", f"{name}.png"}
    document = json.loads((out / f"{name}.json").read_text())
    assert document["machine"]["cpu"]
    assert len(document["rows"]) == 2
    assert "| gdn-nano |" in (out / f"{name}.md").read_text()


@pytest.mark.parametrize("command", [TRAIN, DECODE])
def test_json_is_one_document_and_markdown_one_table(command, capsys):
    cli.main([*command, "--json"])
    assert {row["preset"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"gdn-nano", "transformer-nano"}
    cli.main([*command, "--markdown"])
    assert capsys.readouterr().out.count("| gdn-nano |") == 1


def test_profile_tells_the_shares(capsys):
    cli.main([*TRAIN, "--profile"])
    out = capsys.readouterr().out
    assert all(word in out for word in ("products + native", "native", "other"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bench train --size huge", "--size is 'huge', expected one of 1.3b"),
        ("bench train gnd", "preset is 'gnd', expected perhaps gdn"),
        ("bench train --shapes 2K", "--shapes has '2K', expected a length and a batch"),
        ("bench train --dtype float16", "--dtype is 'float16', expected float32 or bfloat16"),
        ("bench train --json --markdown", "--json and --markdown exclude each other"),
        ("bench decode --context 4X", "--context has '4X', expected a number such as 4096"),
        ("bench decode --steps 0", "--steps is 0, expected at least 1"),
        ("bench decode --out README.md", "--out is README.md, expected a folder"),
    ],
)
def test_wrong_option_is_named_before_anything_is_measured(command, message, capsys, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert cli.main(shlex.split(command)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_without_names_the_papers_ten_are_measured():
    assert len(choose((), "tiny")) == 10
    assert {"retnet-tiny", "gdn-h2-tiny", "transformer-tiny"} < set(choose((), "tiny"))


@pytest.mark.parametrize("verb", [Train, Decode])
def test_example_in_the_help_parses(verb):
    *_, example = verb.__doc__.strip().splitlines()
    assert isinstance(cli.parse(shlex.split(example)[2:]).verb, verb)
