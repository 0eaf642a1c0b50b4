"""Systems of tables 2, 4 and 5: small models that are taught to recall, or the paper's own models, asked the same."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.interop.folder import load
from gated_deltanet.models import CausalLM, ModelConfig, count
from gated_deltanet.synthetic.batch import Batch
from gated_deltanet.synthetic.train import learn_all, stream

from .. import systems
from ..scales import Scale
from . import described, needles, passages
from .text import TextCell

TOKENS = 2048  # of a step
STEPS = 1000
RECALL = 400  # of these steps: only answers are learnt, then the text as well


class Lesson(NamedTuple):
    """What small models are taught, and what is measured of them and of models of the paper's size."""

    rates: Mapping[str, float]  # of each system, by the pilot
    vocab_size: int
    lengths: tuple[int, ...]  # of rows to learn from, in turn
    read: Callable[[Path], Any]  # what rows are made of, in the folder of texts
    batch: Callable[..., Batch]  # of n rows of a length
    asked: Callable[[CausalLM, Path, int, int], dict[str, Any]]  # the small ones, with a seed, so many questions
    asked_large: Callable[[OurModel, int, Path, int], dict[str, Any]]  # trained with rows of such a length


LESSONS = {
    "needles": Lesson(
        {"gdn": 4e-3, "deltanet": 16e-3, "mamba2": 16e-3, systems.MATCHED: 4e-3},
        needles.VOCAB_SIZE,
        needles.LENGTHS,
        needles.read_hay,
        needles.batch,
        needles.asked,
        needles.asked_by_ruler,
    ),
    "recall": Lesson(
        dict.fromkeys(systems.TEXT, 4e-3)
        | {"retnet": 2e-3, "deltanet": 8e-3, "hgrn2": 8e-3, "mamba": 8e-3, "mamba2": 32e-3},
        passages.VOCAB_SIZE,
        passages.LENGTHS,
        passages.read_text,
        passages.batch,
        passages.asked,
        passages.gains,
    ),
}


class TaughtCell(NamedTuple):
    lesson: str  # of LESSONS
    model: str
    seed: int
    rate: float | None = None  # of a pilot; None: the one it has found best

    @property
    def system(self) -> str:
        return f"{self.lesson}: {self.model}" + (f" {self.rate:g}" if self.rate else "")

    @property
    def threads(self) -> int:
        return 1

    def tokens(self, scale: Scale) -> int:
        return TextCell(self.model, self.seed).tokens(scale) if scale.recipe else 0

    def settings(self, scale: Scale) -> dict[str, Any]:
        if scale.recipe:
            asked = "RULER" if self.lesson == "needles" else self.lesson
            return TextCell(self.model, self.seed).settings(scale) | {"questions": asked}
        lengths = LESSONS[self.lesson].lengths
        learnt = {"lengths": lengths, "batch_tokens": TOKENS, "steps": [RECALL, STEPS], "peak_lr": self.peak_lr()}
        return learnt | {"limit": scale.limit, "model": described(self.config(scale))}

    def config(self, scale: Scale) -> ModelConfig:
        lesson = LESSONS[self.lesson]
        return systems.config_of(self.model, replace(scale, vocab_size=lesson.vocab_size, length=lesson.lengths[-1]))

    def peak_lr(self) -> float:
        return self.rate or LESSONS[self.lesson].rates[self.model]

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        began, lesson = perf_counter(), LESSONS[self.lesson]
        if scale.recipe:
            folder = TextCell(self.model, self.seed).trained(scale, data_dir, work)
            large, trained = OurModel(load(folder), tokenizer.load(folder)), perf_counter()
            model, measures = large.model, lesson.asked_large(large, scale.length, data_dir, scale.limit)
        else:
            model = small_model(self.config(scale), self.seed)
            for _ in learn_all(model, batches(lesson, data_dir, self.seed), self.peak_lr(), STEPS):
                pass
            trained = perf_counter()
            measures = lesson.asked(model, data_dir, self.seed, scale.limit)
        return {
            "parameters": count.parameters(model.config),
            "state_bytes": count.state_bytes(model.config),
            "measures": measures,
            "seconds": {"training": round(trained - began), "measuring": round(perf_counter() - trained)},
        }


def small_model(config: ModelConfig, seed: int) -> CausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CausalLM(config)


def batches(lesson: Lesson, data_dir: Path, seed: int) -> Iterator[Batch]:
    """First recall, then reading as well: with both from the first step on, recall takes much longer to learn."""
    rows, text = stream(seed, 0), lesson.read(data_dir)
    for step, length in enumerate(cycle(lesson.lengths)):
        yield lesson.batch(rows, TOKENS // length, length, text, answers_only=step < RECALL)
