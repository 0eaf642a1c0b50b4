"""Training, from the first step to the last: the paper's recipe (section 4) as it is run."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from gated_deltanet import models
from gated_deltanet.data.rows import batches, n_targets

from . import checkpoint, durable
from .counters import Counters, check_diverged, counted, fault
from .metrics import Sink
from .optimizer import learning_rate
from .parallel import barrier, total, whole_model
from .run import SAMPLES, Run
from .samples import sample
from .step import gradient
from .stop import asked_to_stop
from .validation import validate


def train(run: Run, sinks: Sequence[Sink] = ()) -> Run:
    """Go on until all tokens are seen or somebody asks to stop, with a checkpoint at the end in either case.

    sinks: get a record, a flat dict with the key "step", of every step and every validation; on rank 0 only.
    """
    recipe, counters = run.recipe, run.counters
    with asked_to_stop() as asked:
        while counters.step < recipe.steps:
            counters, record = one_step(run, counters)
            report(run, sinks, record)
            check_diverged(counters, recipe)
            last, stop = counters.step == recipe.steps, anybody(run, asked())
            if last or counters.step % recipe.validate_every == 0:
                report(run, sinks, {"step": counters.step, **look(run, counters.step)})
            if last or stop or counters.step % recipe.checkpoint_every == 0:
                save(run, counters)
            if stop:
                break
    if counters.step == recipe.steps:
        save_model(run)
    return replace(run, counters=counters)


def one_step(run: Run, counters: Counters) -> tuple[Counters, dict[str, Any]]:
    """The gradient of the next batch, and unless something is wrong with it, an update."""
    recipe, place, began = run.recipe, run.place, perf_counter()
    tokens = (counters.step + 1) * recipe.batch_tokens
    batch = {"step": counters.step, "size": recipe.batch_rows}
    parts = list(batches(run.train, **batch, micro=recipe.micro_rows, rank=place.rank, ranks=place.ranks))
    step = gradient(run.objective, parts, n_targets(run.train, **batch), clip=recipe.clip, dtype=run.dtype, place=place)
    lr, why = learning_rate(recipe, tokens), fault(step, counters, recipe)
    if why is None:
        for group in run.optimizer.param_groups:
            group["lr"] = lr
        run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    counters = counted(counters, step, why, recipe)
    record = {"step": counters.step, "tokens": tokens, "loss": step.loss, "lr": lr, "grad_norm": step.grad_norm}
    return counters, record | {"seconds": perf_counter() - began} | ({"skipped": why} if why else {})


def look(run: Run, step: int) -> dict[str, float]:
    """Validate, and write a sample to the run's folder."""
    recipe = run.recipe
    found = validate(run.objective, run.valid, recipe.micro_rows, dtype=run.dtype, place=run.place)
    model = whole_model(run.model, run.place) if recipe.sample_tokens else None
    if model is not None:
        text = sample(model, run.tokenizer, recipe.sample_prompt, recipe.sample_tokens, recipe.seed)
        (run.folder / SAMPLES).mkdir(exist_ok=True)
        durable.write_text(run.folder / SAMPLES / f"step-{step:08}.txt", text)
    return {f"valid_{name}": value for name, value in found._asdict().items()}


def save(run: Run, counters: Counters) -> None:
    checkpoint.save(run.checkpoints, run.model, run.optimizer, counters, keep=run.recipe.keep, place=run.place)


def save_model(run: Run) -> None:
    """As an ordinary model's folder, the run's own: `gdn generate` reads it."""
    model = whole_model(run.model, run.place)
    if model is not None:
        models.save(model, run.folder, run.tokenizer)
    barrier(run.place)


def report(run: Run, sinks: Sequence[Sink], record: dict[str, Any]) -> None:
    if run.place.rank == 0:
        for sink in sinks:
            sink(record)


def anybody(run: Run, wish: bool) -> bool:
    """Whether any rank has it."""
    return bool(total(torch.tensor(float(wish), device=run.place.device), run.place))
