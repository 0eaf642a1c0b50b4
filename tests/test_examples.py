"""The scripts in examples/ run, in small."""

import re
import runpy
from pathlib import Path

import pytest
from tiny_models import BYTES, ours, write

from gated_deltanet import Sampling, generate, save
from gated_deltanet.data.tokenizer import prompt_ids

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def run(name: str, *args: object) -> str:
        monkeypatch.setattr("sys.argv", [name, *map(str, args)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_training_on_your_own_text(run, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(150):
        (texts / f"{i}.txt").write_text(f"The state of day {i} is what was not forgotten of the day before. " * 5)
    assert run("train_on_your_text", texts, "--tokens", "1K", "--out", "run").startswith("The ")
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_op_in_your_own_model_learns_to_recall(run):
    right = re.findall(r"(\d+)% of the answers right", run("op_in_your_own_model", "--steps", "100"))
    assert int(right[-1]) > 25  # one of eight by chance


@pytest.mark.parametrize("kind", ["ours", "gpt2"])
def test_evaluating_a_model(run, tmp_path, kind):
    if kind == "gpt2":
        pytest.importorskip("transformers")
        write("gpt2", tmp_path / "model")
    else:
        save(ours("gdn"), tmp_path / "model", BYTES)
    out = run("evaluate_a_hugging_face_model", "model", "--lengths", "640", "--limit", "2")
    assert "S-NIAH-1" in out


def test_generating_with_onnx_runtime(run, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    from gated_deltanet.interop.onnx import to_onnx

    model = ours("gdn-h1")
    save(model, tmp_path / "ours", BYTES)
    to_onnx(tmp_path / "ours", tmp_path / "onnx")
    (greedy,) = generate(
        model, [prompt_ids(BYTES, "def main(")], Sampling(temperature=0.0, max_tokens=9), tokenizer=BYTES
    )
    out = run("generate_with_onnx_runtime", "onnx", "def main(", "--tokens", "9")
    assert out.rstrip("\n") == "def main(" + greedy.text
