"""The small model that comes with the package, which `gdn generate` runs unless it is given another."""

import inspect
import io
import json
import textwrap
from math import log

import torch

from gated_deltanet import cli, demo, get_preset, load
from gated_deltanet.data import tokenizer
from gated_deltanet.data.tokenizer import prompt_ids
from gated_deltanet.models.weights import packed_format


def test_it_is_the_demo_s_in_8_bits_and_small():
    model = load(demo.MODEL)
    assert model.config == get_preset("gdn-demo")
    assert packed_format(model) == "int8"
    assert sum(file.stat().st_size for file in demo.MODEL.iterdir()) < 1.4e6


@torch.no_grad()
def test_it_has_learnt_python():
    text = inspect.getsource(textwrap)[:8000]
    tokens = torch.tensor([prompt_ids(tokenizer.load(demo.MODEL), text)])
    loss = load(demo.MODEL).loss(tokens[:, :-1], tokens[:, 1:], reduction="sum")
    assert float(loss) / log(2) / len(text.encode()) < 2.1  # gzip needs 2.8


def test_generate_writes_text_without_being_given_a_model(capsys):
    assert cli.main(["generate", "--prompt", "def main(", "--max-tokens", "20", "--temperature", "0", "--json"]) is None
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"] == 20
    assert document["completion"].isprintable() or "\n" in document["completion"]


def test_at_a_terminal_it_needs_no_prompt_either(monkeypatch, capsys):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert cli.main(["generate", "--max-tokens", "5"]) is None
    assert capsys.readouterr().err.startswith("5 tokens")
