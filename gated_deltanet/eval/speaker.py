"""Any checkpoint that writes on from prompts, through lm-eval's interface. Needs lm-eval."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from datasets import disable_progress_bars, load_dataset  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.tasks._yaml_loader import load_yaml  # pyright: ignore[reportMissingImports]
from lm_eval.utils import apply_template  # pyright: ignore[reportMissingImports]

from .checkpoints import is_ours
from .cutting import Codec
from .language_model import open_model
from .sets import Row, converted
from .tasks import tasks


class Speaker(NamedTuple):
    """length: tokens of prompt and answer. special: those the tokenizer adds to a text."""

    model: Any
    length: int
    codec: Codec
    special: int

    def room(self, answer: int) -> int:
        """Tokens of a prompt that leave so many for the answer."""
        room = self.length - self.special - answer
        if room < 2:
            raise ValueError(
                f"{self.length} tokens have no room for an answer of {answer}, expected a larger --max-length"
            )
        return room


def open_speaker(checkpoint: str, max_length: int | None, default: int, device: str) -> Speaker:
    """Of max_length tokens, else of `default`, or fewer if it is not ours and names a smaller length of its own."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    given = max_length or (default if is_ours(checkpoint) else None)
    model: Any = open_model(checkpoint, max_length=given, share=True, device=device)

    def encode(text: str) -> list[int]:
        return model.tok_encode(text, add_special_tokens=False)

    length = min(model.max_length, max_length or default)
    return Speaker(model, length, Codec(encode, model.tokenizer.decode), len(model.tok_encode("")))


def speak(speaker: Speaker, prompts: Sequence[str], settings: dict[str, Any]) -> list[str]:
    """What the model writes on from each. settings: lm-eval's generation_kwargs."""
    requests = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(settings)), idx=i)
        for i, prompt in enumerate(prompts)
    ]
    return speaker.model.generate_until(requests, disable_tqdm=True)


def hub_rows(dataset: str, name: str | None, split: str, convert: Callable[[Row], Row]) -> list[Row]:
    disable_progress_bars()
    rows = enumerate(load_dataset(dataset, name, split=split), 1)
    return [converted(convert, dict(row), f"{dataset}, row {number}") for number, row in rows]


class Recipe(NamedTuple):
    """What lm-eval's file of a task says: where its rows are on the hub, how they become prompts, how to generate."""

    dataset: str
    name: str | None
    split: str
    fill: Callable[[Row], str]
    settings: dict[str, Any]
    version: float


def recipe(task: str) -> Recipe:
    """Its functions are not imported: LongBench's need packages that our metrics do without."""
    entry = tasks().task_index.get(task)
    if entry is None or entry.yaml_path is None:
        raise ValueError(f"lm-eval has no task {task}, expected lm-eval 0.4.13 or later")
    found = load_yaml(entry.yaml_path, resolve_func=False)
    return Recipe(
        found["dataset_path"],
        found.get("dataset_name"),
        found["test_split"],
        lambda row: apply_template(found["doc_to_text"], row),
        found["generation_kwargs"],
        found["metadata"]["version"],
    )
