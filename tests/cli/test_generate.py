import io
import json
from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer, train_bpe, vocab_size
from gated_deltanet.models.session import Session
from gated_deltanet.ops import native


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    save(CausalLM(get_preset("gdn-nano"), "gpt2"), folder / "nano", byte_tokenizer())
    save(CausalLM(get_preset("gdn-nano")), folder / "mute")
    return folder


@pytest.fixture
def generated(folder, capsys):
    def run(*args):
        assert cli.main(["generate", str(folder / "nano"), "--json", *args]) is None
        return json.loads(capsys.readouterr().out)

    return run


def test_completion_on_stdout_and_speed_on_stderr(folder, generated, capsys):
    args = ["--prompt", "def f(", "--max-tokens", "20", "--seed", "3"]
    document = generated(*args)
    assert cli.main(["generate", str(folder / "nano"), *args]) is None
    captured = capsys.readouterr()
    assert captured.out == document["completion"] + "\n"
    assert captured.err.startswith("20 tokens, ")
    assert captured.err.endswith(" tokens/s (max_tokens)\n")


def test_json_tells_everything(generated):
    document = generated("--prompt", "def f(", "--max-tokens", "20", "--seed", "3", "--top-k", "40")
    assert (document["prompt"], document["seed"], document["tokens"]) == ("def f(", 3, 20)
    assert document["stop_reason"] == "max_tokens"
    assert 0 < document["seconds_to_first_token"] < document["seconds"]
    assert document["tokens_per_second"] > 19 / document["seconds"]
    assert generated("--prompt", "a", "--max-tokens", "1")["tokens_per_second"] is None


def test_prompt_from_standard_input(generated, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("größer\n"))
    document = generated("--max-tokens", "5")
    assert document["prompt"] == "größer\n"
    assert document["completion"] == generated("--prompt", "größer\n", "--max-tokens", "5")["completion"]


def test_saved_state_goes_on_where_it_was(generated, tmp_path):
    greedy = ("--temperature", "0", "--max-tokens")
    whole = generated("--prompt", "def f(", *greedy, "12")
    first = generated("--prompt", "def f(", *greedy, "5", "--save-state", str(tmp_path / "a"))
    rest = generated("--prompt", "", *greedy, "7", "--state", str(tmp_path / "a"))
    ids = [byte_tokenizer().encode(x["completion"]).ids for x in (whole, first, rest)]
    assert ids[0] == ids[1] + ids[2]


def test_stop_string_ends_the_completion(generated):
    text = generated("--prompt", "def f(", "--max-tokens", "12")["completion"]
    document = generated("--prompt", "def f(", "--max-tokens", "12", "--stop", "never", text[4:6])
    assert document["completion"] == text[: text.index(text[4:6])]
    assert document["stop_reason"] == "stop"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere", "--prompt", "a"], "there is no folder"),
        ([".", "--prompt", "a"], "no config.json in"),
        (["mute", "--prompt", "a"], "no tokenizer.json in"),
        (["nano", "--prompt", "\udcff"], "the prompt holds bytes that are no UTF-8"),
        (["nano", "--prompt", "a", "--top-p", "1.5"], "error: --top-p is 1.5, expected more than 0 and at most 1"),
        (["nano", "--prompt", "a", "--max-tokens", "0"], "error: --max-tokens is 0, expected a whole number"),
        (["nano", "--prompt", "a", "--seed", str(2**64)], "error: --seed is 18446744073709551616, expected at most"),
        (["nano", "--prompt", "a", "--device", "abacus"], "error: --device is 'abacus', expected one that torch can"),
        (["nano", "--prompt", "a", "--state", "none"], "there is no file none, expected a saved session"),
        (["nano", "--prompt", "a", "--save-state", "nowhere/a"], "--save-state is nowhere/a, expected a file"),
    ],
)
def test_error_is_one_line(folder, args, message, capsys):
    assert cli.main(["generate", str(folder / args[0]), *args[1:]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_terminal_without_a_prompt_is_told(folder, monkeypatch, capsys):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert cli.main(["generate", str(folder / "nano")]) == 2
    assert "there is no prompt, expected --prompt TEXT" in capsys.readouterr().err


def test_state_of_another_model_is_refused(folder, generated, tmp_path, capsys):
    save(CausalLM(get_preset("gdn-nano")), tmp_path / "other", byte_tokenizer())
    generated("--prompt", "a", "--max-tokens", "1", "--save-state", str(tmp_path / "a"))
    args = ["generate", str(tmp_path / "other"), "--prompt", "a", "--state", str(tmp_path / "a")]
    assert cli.main(args) == 2
    assert "is of another model" in capsys.readouterr().err


def test_an_empty_prompt_begins_a_document(folder, capsys):
    assert cli.main(["generate", str(folder / "nano"), "--prompt", "", "--max-tokens", "3", "--json"]) is None
    assert json.loads(capsys.readouterr().out)["tokens"] == 3


def test_prompt_begins_a_document_and_a_state_goes_on_within_it(generated, tmp_path, monkeypatch):
    read, rows = Session.read, []
    monkeypatch.setattr(Session, "read", lambda self, tokens: rows.append(tokens.tolist()[0]) or read(self, tokens))
    generated("--prompt", "ab", "--max-tokens", "1", "--save-state", str(tmp_path / "a"))
    generated("--prompt", "ab", "--max-tokens", "1", "--state", str(tmp_path / "a"))
    assert [row for row in rows if len(row) > 1] == [[256, 97, 98], [97, 98]]


def interrupt(monkeypatch, after):
    """Ctrl-C while the model reads for the (after + 1)th time, of which the first is the prompt."""
    run, calls = Session._run, []

    def interrupted(self, rows):
        calls.append(rows)
        if len(calls) == after + 1:
            raise KeyboardInterrupt
        return run(self, rows)

    monkeypatch.setattr(Session, "_run", interrupted)


def test_interruption_ends_the_completion_and_nothing_is_lost(folder, generated, tmp_path, monkeypatch, capsys):
    args = ["generate", str(folder / "nano"), "--prompt", "def f(", "--temperature", "0"]
    whole = generated(*args[2:], "--max-tokens", "12")["completion"]
    with monkeypatch.context() as context:
        interrupt(context, after=6)
        assert cli.main([*args, "--save-state", str(tmp_path / "a")]) == 130
    out, err = capsys.readouterr()
    assert out == whole[:5] + "\n"
    assert err.startswith("5 tokens, ")
    assert err.endswith("tokens/s (interrupted)\n")
    rest = generated("--prompt", "", "--temperature", "0", "--max-tokens", "7", "--state", str(tmp_path / "a"))
    assert out[:-1] + rest["completion"] == whole
    interrupt(monkeypatch, after=1)
    assert cli.main([*args, "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["tokens"], document["stop_reason"]) == (0, "interrupted")


def test_interruption_before_anything_was_read_is_quiet(folder, monkeypatch, capsys):
    interrupt(monkeypatch, after=0)
    assert cli.main(["generate", str(folder / "nano"), "--prompt", "a", "--json"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
@pytest.mark.parametrize("draft", ["prompt", "nano"])
def test_a_draft_changes_nothing_but_the_speed(folder, generated, draft):
    args = (
        "--prompt",
        "def f(a, b):\n    return f(a, b)\n",
        "--max-tokens",
        "30",
        "--temperature",
        "0",
        "--weights",
        "int8",
    )
    document = generated(*args, "--draft", draft if draft == "prompt" else str(folder / draft))
    assert document["completion"] == generated(*args)["completion"]


def test_wrong_drafts_are_told_in_one_line(folder, tmp_path, capsys):
    other = train_bpe(["def f(a): return a"], 270)
    save(CausalLM(replace(get_preset("gdn-nano"), vocab_size=vocab_size(other))), tmp_path / "other", other)
    for name, message in (
        ("nowhere", "expected the folder of a smaller model, or prompt"),
        ("other", f"which has another vocabulary than {folder / 'nano'}, expected the same"),
    ):
        draft = str(tmp_path / name)
        assert cli.main(["generate", str(folder / "nano"), "--prompt", "a", "--draft", draft]) == 2
        assert capsys.readouterr() == ("", f"gdn: error: --draft is {draft}, {message}\n")
