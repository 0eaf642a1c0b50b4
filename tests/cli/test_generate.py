import io
import json

import pytest
import torch

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    save(CausalLM(get_preset("gdn-nano")), folder / "nano", byte_tokenizer())
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
        (["nowhere", "--prompt", "a"], "no config.json in"),
        (["mute", "--prompt", "a"], "no tokenizer.json in"),
        (["nano", "--prompt", "\udcff"], "the prompt holds bytes that are no UTF-8"),
        (["nano", "--prompt", "a", "--top-p", "1.5"], "top_p is 1.5, expected more than 0 and at most 1"),
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
