"""Table 2's systems: small models that learn to find needles, or the paper's own models, asked RULER's questions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F

from gated_deltanet.data import tokenizer
from gated_deltanet.eval.model import OurModel
from gated_deltanet.eval.needle import ask_all
from gated_deltanet.eval.prefix_sharing import Request
from gated_deltanet.interop.folder import load
from gated_deltanet.models import CausalLM, ModelConfig, count
from gated_deltanet.synthetic.batch import NOT_ASKED, Batch
from gated_deltanet.synthetic.train import learn_all, stream

from . import needles, systems
from .cells import described
from .measures import scores_of
from .scales import Scale
from .text_cells import TextCell

# by task and length: how many were asked, how many values were said right, and the loss of a value's token
Scores: TypeAlias = dict[str, dict[str, dict[str, float]]]

SYSTEMS = ("gdn", "deltanet", "mamba2", systems.MATCHED)
FACTORS = (0.5, 1, 2, 4)  # of the trained length, at which needles are hidden
LENGTHS = (32, 64, 64, 128, 128, 256, 256)  # of rows to learn from, in turn
TOKENS = 2048  # of a step
STEPS = 1000
RECALL = 400  # of these steps: only answers are learnt, then the text as well
RATES = {"gdn": 4e-3, "deltanet": 16e-3, "mamba2": 16e-3, systems.MATCHED: 4e-3}  # by the pilot


class NeedleCell(NamedTuple):
    model: str
    seed: int
    rate: float | None = None  # of a pilot; None: the one it has found best

    @property
    def system(self) -> str:
        return f"needles: {self.model}" + (f" {self.rate:g}" if self.rate else "")

    @property
    def threads(self) -> int:
        return 1

    def tokens(self, scale: Scale) -> int:
        return TextCell(self.model, self.seed).tokens(scale) if scale.recipe else 0

    def settings(self, scale: Scale) -> dict[str, Any]:
        if scale.recipe:
            return TextCell(self.model, self.seed).settings(scale) | {"questions": "RULER"}
        learnt = {"lengths": LENGTHS, "batch_tokens": TOKENS, "steps": [RECALL, STEPS], "peak_lr": self.peak_lr()}
        return learnt | {"limit": scale.limit, "model": described(self.config(scale))}

    def config(self, scale: Scale) -> ModelConfig:
        return systems.config_of(self.model, replace(scale, vocab_size=needles.VOCAB_SIZE, length=LENGTHS[-1]))

    def peak_lr(self) -> float:
        return self.rate or RATES[self.model]

    def run(self, scale: Scale, data_dir: Path, work: Path) -> dict[str, Any]:
        began = perf_counter()
        if scale.recipe:
            folder = TextCell(self.model, self.seed).trained(scale, data_dir, work)
            model, trained = OurModel(load(folder), tokenizer.load(folder)), perf_counter()
            return result(model.model, asked_by_ruler(model, scale, data_dir), trained - began, trained)
        model, hay = small_model(self.config(scale), self.seed), needles.read_hay(data_dir)
        for _ in learn_all(model, batches(hay, self.seed), self.peak_lr(), STEPS):
            pass
        trained = perf_counter()
        return result(model, asked(model, hay, self.seed, scale.limit), trained - began, trained)


def small_model(config: ModelConfig, seed: int) -> CausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CausalLM(config)


def batches(hay: needles.Hay, seed: int) -> Iterator[Batch]:
    """First recall, then reading as well: with both from the first step on, recall is not learnt in this time."""
    rows = stream(seed, 0)
    for step, length in enumerate(cycle(LENGTHS)):
        yield needles.batch(rows, TOKENS // length, length, hay, answers_only=step < RECALL)


def asked(model: CausalLM, hay: needles.Hay, seed: int, n: int) -> Scores:
    """Needles in essays, n of each task and length."""
    rows = stream(seed, 2)

    def one(name: str, factor: float) -> dict[str, float]:
        batch = needles.questions(rows, n, int(factor * LENGTHS[-1]), name, hay)
        return answers(model, batch, needles.TASKS[name].words)

    return by_task(one)


@torch.no_grad()
def answers(model: CausalLM, batch: Batch, words: int, rows: int = 16) -> dict[str, float]:
    """words: of each value, all of which must be right."""
    right = loss = 0.0
    for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
        here = targets != NOT_ASKED
        logits = model.logits(model.hidden(tokens, keep_state=False)[0][here]).float()
        right += int((logits.argmax(-1) == targets[here]).unflatten(0, (-1, words)).all(1).sum())
        loss += float(F.cross_entropy(logits, targets[here], reduction="sum"))
    n = len(batch.tokens)
    return {"asked": n, "right": right, "loss": round(loss / (n * words), 4)}


def asked_by_ruler(model: OurModel, scale: Scale, data_dir: Path) -> Scores:
    def one(name: str, factor: float) -> dict[str, float]:
        found = ask_all(model, name, int(factor * scale.length), scale.limit, data_dir)
        values = [model.encode(f" {each.value}") for each in found]
        scores = scores_of(
            model, [Request([*each.tokens, *value], len(value)) for each, value in zip(found, values, strict=True)]
        )
        loss = -sum(each.logprob for each in scores) / sum(map(len, values))
        return {"asked": len(found), "right": sum(each.greedy for each in scores), "loss": round(loss, 4)}

    return by_task(one)


def by_task(one: Callable[[str, float], dict[str, float]]) -> Scores:
    return {name: {str(factor): one(name, factor) for factor in FACTORS} for name in needles.TASKS}


def result(model: CausalLM, found: Scores, training: float, began: float) -> dict[str, Any]:
    """training: seconds. began: when the questions were first asked."""
    return {
        "parameters": count.parameters(model.config),
        "state_bytes": count.state_bytes(model.config),
        "measures": {"needles": found},
        "seconds": {"training": round(training), "measuring": round(perf_counter() - began)},
    }
