"""Train, compare, write, look: from nothing but the package to a report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from math import log
from pathlib import Path
from time import perf_counter

import torch

from gated_deltanet.data.corpus import is_valid
from gated_deltanet.data.sources import documents
from gated_deltanet.data.tokenizer import beginning_documents
from gated_deltanet.files import write_text
from gated_deltanet.inspection import figure
from gated_deltanet.inspection.document import document
from gated_deltanet.inspection.trace import trace
from gated_deltanet.models import CausalLM, count, get_preset
from gated_deltanet.train import loop, metrics
from gated_deltanet.train.loop import sample
from gated_deltanet.train.parallel import Place, autocast
from gated_deltanet.train.progress import progress
from gated_deltanet.train.recipe import Recipe
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.run import Run, resolved_dtype, start
from gated_deltanet.train.step import make_optimizer

from . import baselines, curves
from .page import page

REPORT = "report.html"
PROMPT = "def read_lines(path):\n    "


@dataclass(frozen=True)
class Result:
    facts: Mapping[str, str]
    """By name."""
    bits: Mapping[str, float]
    """Per byte of the validation documents, by who predicts them."""
    sample: str
    """It begins with PROMPT."""
    report: Path


def train(folder: Path, minutes: float) -> Run:
    """A run in a folder that is empty or does not exist, of about so many minutes."""
    place = Place(torch.device("cpu"))
    run = start(recipe_for(minutes, place.device), folder, place)
    with metrics.jsonl(folder / metrics.FILE) as to_file, progress(run) as to_screen:
        return loop.learn(run, [to_file, to_screen])


def recipe_for(minutes: float, device: torch.device) -> Recipe:
    """The recipe `demo`, on as many tokens as can be learnt in the time."""
    recipe = resolve("gdn-demo", None, {"dtype": resolved_dtype("auto", device)})
    steps = max(20, round(60 * minutes * speed(recipe) / recipe.batch_tokens))
    tokens = steps * recipe.batch_tokens
    every = -(-steps // 5)
    return replace(recipe, tokens=tokens, warmup_tokens=tokens // 20, validate_every=every, checkpoint_every=every)


def speed(recipe: Recipe) -> float:
    """Tokens per second, of the fastest of ten steps."""
    model, seconds = CausalLM(get_preset(recipe.preset)), []
    optimizer = make_optimizer(model, recipe)
    tokens = torch.randint(model.config.vocab_size, (1, recipe.batch_tokens))
    ends = torch.arange(0, recipe.batch_tokens + 1, recipe.length)
    for _ in range(10):
        began = perf_counter()
        with autocast(tokens.device, getattr(torch, recipe.dtype)):
            loss = model.loss(tokens, tokens, cu_seqlens=ends)
        loss.backward()
        optimizer.step()
        seconds.append(perf_counter() - began)
    return recipe.batch_tokens / min(seconds)


def conclude(run: Run, commands: list[str]) -> Result:
    """What came of it, also as a page in the run's folder. commands: to try next."""
    recipe, records = run.recipe, metrics.read(run.folder / metrics.FILE)
    train, valid = split_texts(recipe)
    others = {"gzip −9": baselines.gzip_bits(valid), "n-gram": baselines.ngram_bits(train, valid)}
    bits = {"this model": last(records, "valid_bits_per_byte"), **others}
    size, seconds = count.parameters(run.model.config), sum(record.get("seconds", 0) for record in records)
    facts = {
        "model": f"{recipe.preset} over {run.train.corpus.vocab_size:,} tokens: {size:,} parameters",
        "trained on": f"{recipe.tokens:,} tokens of {baselines.n_bytes(train) / 1e6:.1f} MB of Python",
        "in": f"{seconds / 60:.1f} minutes, {recipe.tokens / seconds:,.0f} tokens per second",
    }
    text = sample(run.model, run.tokenizer, PROMPT, 160, recipe.seed)
    pictures = {
        "How it learned": png(curves.draw(records, bits_per_nat(run), others)),
        "What its memory does": gates(run, valid[0].decode()[:600]),
    }
    report = run.folder / REPORT
    write_text(report, page(facts, bits, (PROMPT, text.removeprefix(PROMPT)), pictures, commands))
    return Result(facts, bits, text, report)


def split_texts(recipe: Recipe) -> tuple[list[bytes], list[bytes]]:
    """The documents of the run, to train and to validate."""
    texts = [each.text for each in documents(recipe.data, skipped=Counter())]
    sides = [is_valid(text, recipe.valid, recipe.seed) for text in texts]
    train, valid = ([t.encode() for t, s in zip(texts, sides, strict=True) if s is side] for side in (False, True))
    return train, valid


def last(records: list[dict], name: str) -> float:
    return [record[name] for record in records if name in record][-1]


def bits_per_nat(run: Run) -> float:
    """From the loss of a token to bits per byte."""
    corpus = run.train.corpus
    return int(corpus.positions.sum()) / int(corpus.n_bytes.sum()) / log(2)


def gates(run: Run, text: str) -> bytes:
    encoding = beginning_documents(run.tokenizer).encode(text)
    seen = trace(run.model, torch.tensor(encoding.ids))
    picture = BytesIO()
    figure.draw(document(run.folder.name, run.model.config, seen, encoding, run.tokenizer, text), picture)
    return picture.getvalue()


def png(drawing: curves.Figure) -> bytes:
    picture = BytesIO()
    drawing.savefig(picture, format="png", dpi=120)
    return picture.getvalue()
