"""What the README and the docs say is what happens."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from gated_deltanet import CausalLM, get_preset, ops, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.models import presets

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODELS, OPS = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("models", "ops"))


def code_in(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run(code: str) -> dict:
    names: dict = {}
    exec(code, names)
    return names


def test_lines_on_training_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = code_in((ROOT / "README.md").read_text())
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(60):
        (texts / f"{i}.py").write_text(f"def f{i}(x):\n    return x + {i}\n" * 10)
    code = code.replace('"20K"', '"4K", "data": "texts", "valid": 0.2, "sample_tokens": 0')
    assert isinstance(run(code)["model"], CausalLM)


def test_lines_on_ops_run_as_they_stand():
    (code,) = code_in(OPS)
    names = run(code)
    assert names["o"].shape == (2, 1000, 4, 128)
    assert names["o_next"].shape == (2, 4, 128)
    assert names["v"].grad.isfinite().all()
    assert torch.equal(names["state"].isfinite().all(), torch.tensor(True))


def test_lines_on_models_run_as_they_stand():
    names = run(code_in(MODELS)[0])
    assert names["logits"].shape == (1, 300, 257)
    assert names["session"].length == names["branch"].length == 302


def test_lines_on_hugging_face_run_as_they_stand(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    save(CausalLM(get_preset("gdn-nano")), Path("runs/tiny"), byte_tokenizer())
    assert run(code_in(MODELS)[1])["tokens"].shape[1] > len("def main(")


@pytest.mark.parametrize("architecture", presets.MIXERS)
def test_table_of_models_links_every_mixer_to_its_file(architecture):
    (row,) = [line for line in MODELS.splitlines() if line.startswith("|") and f"`{architecture}-*`" in line]
    for mixer in get_preset(f"{architecture}-nano").mixers:
        file = Path(inspect.getfile(type(mixer))).relative_to(ROOT)
        assert f"[`{type(mixer).__name__}`](../{file})" in row


def test_table_of_ops_lists_every_op_with_its_forms():
    for op, backends in ops.backends().items():
        (row,) = re.findall(rf"^\| \[`{op}`\].*$", OPS, re.MULTILINE)
        assert "as above" in row or all(name in row for name in backends), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
