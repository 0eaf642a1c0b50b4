"""Training, from the first step to the last: the paper's recipe (section 4) as it is run."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from gated_deltanet.data.rows import batches, n_targets
from gated_deltanet.data.tokenizer import end_of_text, prompt_ids
from gated_deltanet.files import write_text
from gated_deltanet.interop import folder
from gated_deltanet.models import CausalLM
from gated_deltanet.models.generate import generate
from gated_deltanet.models.sampling import Sampling

from . import checkpoint, metrics
from .metrics import Sink
from .parallel import Place, barrier, processes, total, whole_model
from .progress import progress
from .recipe import Recipe
from .run import SAMPLES, Run, restore, start
from .step import Counters, check_diverged, counted, fault, gradient, learning_rate
from .validation import validate

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Outcome(NamedTuple):
    """What is left of a run when its processes have ended."""

    folder: Path
    recipe: Recipe
    counters: Counters
    rank: int

    @property
    def finished(self) -> bool:
        """Whether all tokens were seen; else `resume` goes on."""
        return self.counters.step == self.recipe.steps


def train(recipe: Recipe, out: str | Path, *, quiet: bool = False) -> Outcome:
    """Train a new model in the folder `out`, which is empty or does not exist: what `gdn train` does.

    At the end the folder is that of a model, for `gated_deltanet.load`. Ctrl-C saves and stops, as SIGTERM does.
    quiet: no progress on stderr. Processes that torchrun started work together.
    """
    with place_of_process() as place:
        return followed(start(recipe, out, place), quiet)


def resume(folder: str | Path, changes: Mapping[str, Any] | None = None, *, quiet: bool = False) -> Outcome:
    """Go on with the run in a folder as if nothing had happened. changes: settings that change nothing it learns."""
    with place_of_process() as place:
        return followed(restore(folder, place, changes), quiet)


@contextmanager
def place_of_process() -> Iterator[Place]:
    """Of several processes only the first one warns."""
    with processes() as place, warnings.catch_warnings():
        if place.rank:
            warnings.simplefilter("ignore", UserWarning)
        yield place


def followed(run: Run, quiet: bool) -> Outcome:
    """The run to its end, with its metrics in its folder, and on the screen unless quiet."""
    with ExitStack() as stack:
        sinks: list[Sink] = []
        if run.place.rank == 0:
            sinks.append(stack.enter_context(metrics.jsonl(run.folder / metrics.FILE)))
            sinks.append(stack.enter_context(metrics.tensorboard(run.folder / "tensorboard")))
            if not quiet:
                sinks.append(stack.enter_context(progress(run)))
        run = learn(run, sinks)
    return Outcome(run.folder, run.recipe, run.counters, run.place.rank)


def learn(run: Run, sinks: Sequence[Sink] = ()) -> Run:
    """Go on until all tokens are seen or somebody asks to stop, with a checkpoint at the end in either case.

    sinks: get a record, a flat dict with the key "step", of every step and every validation; on rank 0 only.
    """
    recipe, counters = run.recipe, run.counters
    with asked_to_stop() as asked:
        while counters.step < recipe.steps:
            counters, record = one_step(run, counters)
            report(run, sinks, record)
            check_diverged(counters, recipe)
            last, stop = counters.step == recipe.steps, any_rank(run, asked())
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
    n = n_targets(run.train, **batch) or 1  # a batch may hold nothing but questions
    step = gradient(run.objective, parts, n, clip=recipe.clip, dtype=run.dtype, place=place)
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
        write_text(run.folder / SAMPLES / f"step-{step:08}.txt", text)
    return {f"valid_{name}": value for name, value in found._asdict().items()}


def save(run: Run, counters: Counters) -> None:
    checkpoint.save(run.checkpoints, run.model, run.optimizer, counters, keep=run.recipe.keep, place=run.place)


def save_model(run: Run) -> None:
    """As an ordinary model's folder, the run's own: `gdn generate` reads it."""
    model = whole_model(run.model, run.place)
    if model is not None:
        folder.save(model, run.folder, run.tokenizer)
    barrier(run.place)


def report(run: Run, sinks: Sequence[Sink], record: dict[str, Any]) -> None:
    if run.place.rank == 0:
        for sink in sinks:
            sink(record)


def any_rank(run: Run, flag: bool) -> bool:
    """Whether the flag is true on any rank."""
    return bool(total(torch.tensor(float(flag), device=run.place.device), run.place))


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM as a wish, so that the step at hand is finished and saved: whether there was one.

    Who cannot wait may kill -9: the last checkpoint stays whole.
    """
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if not asked:  # torchrun passes on what the terminal has sent already
            print("stopping after this step …", file=sys.stderr)
        asked.append(number)

    if current_thread() is not main_thread():  # signals are for the main thread
        yield lambda: False
        return
    before = {each: signal.signal(each, note) for each in SIGNALS}
    try:
        yield lambda: bool(asked)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def sample(model: CausalLM, tokenizer: Tokenizer, prompt: str, tokens: int, seed: int) -> str:
    """What the model writes, to be looked at while it learns: a document that begins with the prompt."""
    end = end_of_text(tokenizer)
    sampling = Sampling(max_tokens=tokens, temperature=0.8, top_p=0.95, seed=seed)
    return prompt + generate(model, [prompt_ids(tokenizer, prompt)], sampling, tokenizer=tokenizer, end=end)[0].text
