import base64
import io
import json
import re
import sys

import numpy as np
import pytest
import torch

from gated_deltanet import CausalLM, cli, get_preset, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.inspection.page import packed

TEXT = "def é():\n\treturn '</script><script>alert(1)</script>' # {{DATA}} 😀"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return saved("gdn-h1-nano", tmp_path_factory.mktemp("<script>alert(2)<"))


def saved(preset, folder):
    torch.manual_seed(0)
    save(CausalLM(get_preset(preset)), folder, byte_tokenizer())
    return str(folder)


def data_of(page):
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_page_is_one_file_with_the_text_as_data_only(checkpoint, tmp_path, capsys):
    assert cli.main(["inspect", checkpoint, "--text", TEXT, "--out", str(tmp_path / "page.html")]) is None
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert "page.html" in capsys.readouterr().err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(2)" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bsrc=|@import|url\(", page)
    data = data_of(page)
    assert data["tokens"][0] == "<|endoftext|>"
    assert "".join(data["tokens"][1:]) == TEXT
    assert data["checkpoint"] == checkpoint
    assert len(data["tokens"]) == len(data["surprise"]) == 1 + len(TEXT.encode())


def test_json_holds_the_numbers_by_layer_head_and_token(checkpoint, capsys):
    cli.main(["inspect", checkpoint, "--text", "abcd", "--json"])
    document = json.loads(capsys.readouterr().out)
    gdn, attention = document["layers"][:2]
    assert [np.shape(gdn[name]) for name in ("alpha", "beta", "memory", "norm", "rank")] == [(3, 5)] * 5
    assert attention == {"mixer": "Attention", "alpha": None, "beta": None, "memory": None, "norm": None, "rank": None}
    assert document["tokens"] == ["<|endoftext|>", *"abcd"]
    assert [x is None for x in document["surprise"]] == [True, False, False, False, False]
    assert document["state_at"] == [0, 1, 2, 3, 4]


def test_packed_numbers_are_within_a_step():
    x = np.random.default_rng(0).uniform(0.2, 1, (3, 50))
    p = packed(x.tolist())
    steps = np.frombuffer(base64.b64decode(p["steps"]), "<u2").reshape(p["heads"], -1)
    np.testing.assert_allclose(p["least"] + steps * (p["most"] - p["least"]) / 65535, x, atol=1e-5)
    assert packed([[0.5]])["steps"] == "AAA="


def test_text_comes_from_a_file_or_standard_input(checkpoint, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("from a file\n")
    cli.main(["inspect", checkpoint, "--file", str(tmp_path / "text"), "--json"])
    assert "".join(json.loads(capsys.readouterr().out)["tokens"][1:]) == "from a file\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("piped ü".encode())))
    cli.main(["inspect", checkpoint, "--json"])
    assert "".join(json.loads(capsys.readouterr().out)["tokens"][1:]) == "piped ü"


def test_long_text_is_cut_and_says_so(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gated_deltanet.cli.inspection.LONGEST", 10)
    cli.main(["inspect", checkpoint, "--text", "0123456789 and more", "--out", str(tmp_path / "page.html")])
    assert "20 tokens, of which the first 10 are read" in capsys.readouterr().err
    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert (len(data["tokens"]), data["n_tokens"]) == (10, 20)


def test_model_without_gates_has_a_page_with_its_surprise(tmp_path):
    checkpoint = saved("transformer-nano", tmp_path / "model")
    assert cli.main(["inspect", checkpoint, "--text", "abc", "--out", str(tmp_path / "page.html")]) is None
    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert all(layer["alpha"] is None and layer["norm"] is None for layer in data["layers"])
    assert data["surprise"][1] > 0


@pytest.mark.parametrize(
    ("preset", "text"), [("gdn-h2-nano", "a text $x$"), ("transformer-nano", "abc"), ("gdn-nano", "a")]
)
def test_a_picture_is_drawn(preset, text, tmp_path):
    checkpoint = saved(preset, tmp_path / "model")
    assert cli.main(["inspect", checkpoint, "--text", text, "--png", str(tmp_path / "maps.png")]) is None
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("ending", "begins"), [("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_the_name_of_a_picture_says_what_it_is(ending, begins, checkpoint, tmp_path):
    assert cli.main(["inspect", checkpoint, "--text", "ab", "--png", str(tmp_path / f"maps.{ending}")]) is None
    assert (tmp_path / f"maps.{ending}").read_bytes().startswith(begins)
    assert not (tmp_path / "inspect.html").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{no}", "--text", "a"], "there is no folder"),
        (["{model}", "--text", "a", "--device", "abacus"], "--device is 'abacus'"),
        (["{bare}", "--text", "a"], "no tokenizer.json"),
        (["{model}", "--text", ""], "the text is empty"),
        (["{model}", "--text", "a", "--file", "b"], "exclude each other"),
        (["{model}", "--file", "{no}"], "No such file"),
        (["{model}", "--file", "{model}/model.safetensors"], "is not a text in UTF-8"),
        (["{model}", "--text", "a", "--out", "{no}/page.html"], "--out is"),
        (["{model}", "--text", "a", "--png", "{no}/maps.png"], "--png is"),
        (
            ["{no}", "--text", "a", "--png", "maps.xyz"],
            "--png is maps.xyz, expected a name that ends with .png or .svg",
        ),
        (["{no}", "--text", "a", "--out", "maps.png"], "--out is maps.png, expected a name that ends with .html"),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line(args, message, checkpoint, tmp_path, capsys):
    save(CausalLM(get_preset("gdn-nano")), tmp_path / "bare")
    places = {"model": checkpoint, "bare": tmp_path / "bare", "no": tmp_path / "nowhere"}
    assert cli.main(["inspect", *(a.format(**places) for a in args)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
