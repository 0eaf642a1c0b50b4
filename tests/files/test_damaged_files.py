"""Whatever has happened to a file of ours: it is read, or an error names it."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
import torch
from harm import spoilt

from gated_deltanet import CausalLM, ModelConfig, Session, load, save
from gated_deltanet.data import shards
from gated_deltanet.data.prepare import prepare
from gated_deltanet.data.shards import open_corpus
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.eval.checkpoint import is_ours
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.result import answer_each, read_answers
from gated_deltanet.train import checkpoint, metrics
from gated_deltanet.train.loop import learn
from gated_deltanet.train.parallel import Place
from gated_deltanet.train.recipe import read_recipe, read_settings
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.run import Run, check_data, start

HERE = Place(torch.device("cpu"))
CONFIG = ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6), Attention(2, 4, window=5)), 16, 50)


@dataclass(frozen=True)
class Case:
    file: Path
    read: Callable[[Path], object]  # given the folder it is in
    seal: Callable[[Path], object] = lambda folder: None  # what another file tells of it is made true again


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    at = tmp_path_factory.mktemp("whole")
    (texts := at / "texts").mkdir()
    for i in range(30):
        (texts / f"{i}.txt").write_text(f"state {i} forgets what alpha says " * (i % 5 + 1))
    run = trained(str(texts), at / "run")
    prepared(texts, at / "data")
    torch.manual_seed(0)
    model = CausalLM(CONFIG)
    save(model, at / "model")
    session = Session(model)
    session.append(torch.arange(9))
    session.save(at / "a.safetensors")
    list(answer_each(["a", "b"], lambda asked: [[1.5, float("-inf")]] * len(asked), at / "answers.jsonl"))
    (newest,) = checkpoint.checkpoints(run.checkpoints)
    (tensors,) = newest.glob("*.safetensors")

    def resume(folder):
        return checkpoint.load(folder.parent, run.model, run.optimizer, HERE)

    return {
        "run.json": Case(run.folder / "run.json", lambda folder: check_data(replace(run, folder=folder))),
        "recipe.toml": Case(run.folder / "recipe.toml", lambda folder: read_recipe(folder / "recipe.toml")),
        "settings": Case(run.folder / "recipe.toml", lambda folder: read_settings(folder / "recipe.toml")),
        "metrics": Case(run.folder / "metrics.jsonl", lambda folder: metrics.forget_after(folder / metrics.FILE, 1)),
        "config": Case(at / "model" / "config.json", load),
        "foreign config": Case(at / "model" / "config.json", lambda folder: is_ours(str(folder))),
        "weights": Case(at / "model" / "model.safetensors", load),
        "session": Case(at / "a.safetensors", lambda folder: Session(model).load(folder / "a.safetensors")),
        "manifest": Case(at / "data" / "manifest.json", read_corpus),
        "begun": Case(at / "data" / "settings.json", partial(prepared, texts)),
        "shard": Case(at / "data" / "00000.safetensors", read_corpus),
        "sealed shard": Case(at / "data" / "00000.safetensors", read_corpus, seal_shard),
        "hashed shard": Case(
            at / "data" / "00000.safetensors", lambda folder: shards.read(folder / "00000.safetensors")
        ),
        "hashes": Case(newest / "manifest.json", resume),
        "counters": Case(newest / "counters.json", resume),
        "sealed counters": Case(newest / "counters.json", resume, seal_checkpoint),
        "tensors": Case(tensors, resume),
        "sealed tensors": Case(tensors, resume, seal_checkpoint),
        "answers": Case(at / "answers.jsonl", lambda folder: read_answers(folder / "answers.jsonl")),
    }


def trained(texts: str, folder: Path) -> Run:
    """Two steps, with a checkpoint of each, of which one is kept."""
    sizes = {"length": 48, "batch_tokens": 96, "tokens": 192, "warmup_tokens": 96}
    often = {"validate_every": 100, "checkpoint_every": 1, "keep": 1, "sample_tokens": 0}
    recipe = resolve("gdn-nano", None, {"data": texts, "valid": 0.2, "dtype": "float32"} | sizes | often)
    run = start(recipe, folder, HERE)
    with metrics.jsonl(folder / metrics.FILE) as write:
        return learn(run, [write])


def prepared(texts: Path, folder: Path) -> None:
    prepare(str(texts), byte_tokenizer(), folder, valid=0.2, shard_bytes=2000)


def read_corpus(folder):
    corpus = open_corpus(folder, "all")
    return [corpus.read(i, 0, int(n)) for i, n in enumerate(corpus.positions)]


def seal_shard(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["size"] = (folder / "00000.safetensors").stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))


def seal_checkpoint(folder):
    told = json.loads((folder / "manifest.json").read_text())
    told = {name: sha256((folder / name).read_bytes()).hexdigest() for name in told}
    (folder / "manifest.json").write_text(json.dumps(told))


def copied(case: Case, to: Path) -> Path:
    """The folder of a copy. A checkpoint's is in one of its own, as the one checkpoint of a run."""
    folder = to / case.file.parent.name
    folder.mkdir(parents=True)
    for path in case.file.parent.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def check(case: Case, folder: Path, draw: Random, where: str) -> None:
    (folder / case.file.name).write_bytes(spoilt(case.file.read_bytes(), case.file.suffix[1:], draw))
    case.seal(folder)
    if error := raised(case, folder):
        said = f"{where}: {type(error).__name__}: {error}"
        assert isinstance(error, ValueError | OSError), said
        assert case.file.name in str(error) or folder.name in str(error), said
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 2000, said  # noqa: PT018


def raised(case: Case, folder: Path) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of checkpoints that are passed over
            case.read(folder)
    except BaseException as error:  # a panic of Rust is not even an Exception
        return error
    return None


KINDS = ["run.json", "recipe.toml", "settings", "metrics", "config", "foreign config", "weights", "session", "manifest"]
KINDS += ["begun", "shard", "sealed shard", "hashed shard", "hashes", "counters", "sealed counters", "tensors"]
KINDS += ["sealed tensors", "answers"]


@pytest.mark.parametrize("n", [12, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_named(kind, n, cases, tmp_path):
    case = cases[kind]
    folder = copied(case, tmp_path)
    case.read(folder)  # while it is whole
    for seed in range(n):
        for path in (each for each in case.file.parent.iterdir() if each.is_file()):
            shutil.copy(path, folder)
        check(case, folder, Random(f"{kind} {seed}"), f"{kind}, seed {seed}")
