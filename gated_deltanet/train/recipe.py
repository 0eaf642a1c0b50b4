"""Every setting of a run, in one frozen dataclass; and as a TOML file, which says what each setting means."""

import ast
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from gated_deltanet.files import naming, read_toml
from gated_deltanet.naming import unknown
from gated_deltanet.quantity import parse_count, parse_size

DTYPES = ("auto", "float32", "bfloat16")
IN_POWERS_OF_TWO = ("length", "batch_tokens")


@dataclass(frozen=True)
class Recipe:
    """What a run does. What the paper gives (section 4) is the default. Whole numbers may be written 4K or 100B."""

    preset: str = ""
    """The model, a name `gdn presets` lists; its vocabulary becomes the tokenizer's."""
    model: str = ""
    """Instead of a preset, a model of one's own: a TOML file of the fields of ModelConfig, or a run's config.json."""
    set: tuple[str, ...] = ()
    """Change fields of the preset or file, such as d_ff=512 or mixers.0.gate=false."""
    init: str = ""
    """Start from the weights in this model's folder, with its tokenizer; the model is its own if no other is named."""
    start: str = "width"
    """How the weights of a new model start: width, or gpt2 as until November 2026 (gated_deltanet/models/start.py)."""
    data: str = "stdlib"
    """stdlib, a file, folder or glob of texts, several with commas, or a folder that `gdn data prepare` made."""
    tokenizer: str = "bytes"
    """bytes, mistral, bpe:SIZE (made from the data), a folder or a name on the hub. Of several, with commas, the first
    that is available."""
    valid: float = 0.01
    """The share of the documents that is kept for validation."""
    seed: int = 0
    """Seed of the weights, of the order of the data, and of samples."""
    length: int = 4096
    """Number of positions in a row."""
    reset: bool = True
    """Whether each document begins with an empty state; otherwise each row does."""
    tokens: int = 100_000_000_000
    """Number of tokens to train on in all, rounded up to whole steps."""
    batch_tokens: int = 524_288
    """Number of tokens in a step, on all ranks together."""
    micro_rows: int = 4
    """Number of rows that a rank takes at a time; the gradient depends on it by rounding only."""
    peak_lr: float = 4e-4
    """The learning rate after the warm-up."""
    final_lr: float = 0.1
    """Share of the peak that a cosine takes the learning rate down to."""
    warmup_tokens: int = 1_000_000_000
    """Tokens in which the learning rate rises from 0 to the peak; unless given, at most a tenth of all tokens."""
    beta1: float = 0.9
    """AdamW's decay rate of the mean gradient."""
    beta2: float = 0.95
    """AdamW's decay rate of the mean squared gradient."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """Weight decay of matrices, embeddings too; not of norms, biases, A_log, dt_bias and other vectors."""
    decay_all: bool = False
    """Whether weight decay is of these, too, as in the official code."""
    clip: float = 1.0
    """Largest norm of the gradient; a larger one is scaled down to it."""
    dtype: str = "auto"
    """Type of matrix products: float32, bfloat16 (autocast; weights stay float32), or auto: the faster one here."""
    checkpointing: bool = False
    """Whether blocks are run again in backward instead of keeping their activations."""
    compile: bool = False
    """Whether torch.compile makes the blocks."""
    parallel: str = "auto"
    """How several processes work together: ddp (what auto means), fsdp, or hsdp:RxS, R replicas of S shards."""
    validate_every: int = 1000
    """Number of steps from one validation to the next; there is one at the end, too."""
    validate_tokens: int = 10_000_000
    """Number of tokens to validate on at most, in whole documents."""
    checkpoint_every: int = 1000
    """Number of steps from one checkpoint to the next; there is one at the end, too."""
    keep: int = 2
    """Number of checkpoints to keep, the newest."""
    sample_tokens: int = 128
    """Number of tokens of the sample that the model writes at each validation; 0: none."""
    sample_prompt: str = "def "
    """How the sample begins."""
    bad_steps: int = 10
    """Number of steps in a row that may be skipped because loss or gradient are not finite, before the run stops."""
    spike: float = 0.0
    """Skip a step whose gradient is so many times larger than the median of the last hundred; 0: never."""

    def __post_init__(self):
        # here: `gdn --help` wants the fields above, and no torch
        from gated_deltanet.fields import check_choice, check_positive, check_sizes, check_switches
        from gated_deltanet.models.presets import PRESETS
        from gated_deltanet.models.start import STARTS

        if self.preset and self.model:
            raise ValueError(f"Recipe: preset is {self.preset} and model {self.model}, expected one of them")
        if self.preset not in PRESETS and not (self.preset == "" and (self.model or self.init)):
            raise unknown("preset", self.preset, PRESETS)
        check_choice(self, "dtype", DTYPES)
        check_choice(self, "start", STARTS)
        check_switches(self, "reset", "decay_all", "checkpointing", "compile")
        check_sizes(self, "length", "tokens", "batch_tokens", "micro_rows", "validate_every", "validate_tokens")
        check_sizes(self, "checkpoint_every", "keep", "bad_steps")
        check_sizes(self, "seed", "warmup_tokens", "sample_tokens", least=0)
        for name in ("peak_lr", "eps", "clip"):
            check_positive(self, name)
        for name in ("valid", "final_lr", "beta1", "beta2"):
            check_positive(self, name, most=1)
        for name in ("weight_decay", "spike"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Recipe: {name} is {getattr(self, name)}, expected 0 or more")
        self._check_batch()

    def _check_batch(self) -> None:
        if self.batch_tokens % self.length:
            near = self.batch_tokens // self.length * self.length
            found = f"Recipe: batch_tokens is {self.batch_tokens}, expected a multiple of length, {self.length}"
            raise ValueError(f"{found}: {f'{near} or ' if near else ''}{near + self.length}")
        if self.warmup_tokens >= self.tokens:
            raise ValueError(f"Recipe: warmup_tokens is {self.warmup_tokens}, expected less than tokens, {self.tokens}")

    @property
    def name(self) -> str:
        """Of the model, for people."""
        file = Path(self.model)
        own = file.parent.name if file.name == "config.json" else file.stem
        return self.preset or own or f"{Path(self.init).name}-tuned"

    @property
    def batch_rows(self) -> int:
        return self.batch_tokens // self.length

    @property
    def steps(self) -> int:
        return -(-self.tokens // self.batch_tokens)


def from_values(values: Mapping[str, Any]) -> Recipe:
    """Of values as TOML and the command line give them."""
    if not any(values.get(name) for name in ("preset", "model", "init")):
        raise ValueError("Recipe: preset is missing, expected the name of a model such as gdn-tiny")
    return Recipe(**all_typed(values))


def all_typed(values: Mapping[str, Any]) -> dict[str, Any]:
    types = {field.name: field.type for field in fields(Recipe)}
    for name in values:
        if name not in types:
            raise unknown("setting", name, types)
    return {name: typed(name, value, types[name]) for name, value in values.items()}


def to_values(recipe: Recipe) -> dict[str, Any]:
    return asdict(recipe)


def typed(name: str, value: Any, kind: Any) -> Any:
    """A whole number may be a text, 100B; a number may be whole; changes a table; else the type must be right."""
    if kind == tuple[str, ...]:
        return changes(name, value)
    if kind is int and isinstance(value, int | float | str) and not isinstance(value, bool):
        return whole(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind):
        raise ValueError(f"Recipe: {name} is {value!r}, expected {KINDS[kind]}")
    return value


KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def changes(name: str, value: Any) -> tuple[str, ...]:
    """Of a list of "d_ff=512", or a table of names and values."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={json.dumps(item)}" for key, item in value.items())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"Recipe: {name} is {value!r}, expected a list of texts such as 'd_ff=512'")
    return tuple(value)


def whole(name: str, value: int | float | str) -> int:
    """100B tokens are 10¹¹; 4K of length are 4,096, and a batch of 0.5M tokens is one of 2¹⁹."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):  # TOML's 1e9
        if not value.is_integer():
            raise ValueError(f"Recipe: {name} is {value}, expected a whole number")
        return int(value)
    text = value.strip()
    if text.isdecimal() and len(text) < 19:  # 0, too
        return int(text)
    return parse_size(name, text) if name in IN_POWERS_OF_TWO else parse_count(name, text)


def read_recipe(file: Path) -> Recipe:
    """Of a file with every setting, as `as_toml` writes it."""
    values = read_toml(file)
    with naming(file):
        return from_values(values)


def read_settings(file: Path) -> dict[str, Any]:
    """Of a file as anyone writes one: the settings that differ from a recipe, which may be named, too."""
    values = read_toml(file)
    with naming(file):
        name = {"recipe": typed("recipe", values.pop("recipe"), str)} if "recipe" in values else {}
        return name | all_typed(values)


def as_toml(recipe: Recipe) -> str:
    lines = (f"{name} = {literal(value)}  # {meanings()[name]}" for name, value in to_values(recipe).items())
    return "\n".join(lines) + "\n"


def literal(value: str | bool | int | float | tuple[str, ...]) -> str:
    """JSON's is TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@cache
def meanings() -> dict[str, str]:
    """What stands below each field of `Recipe`, on one line."""
    (recipe,) = ast.parse(inspect.getsource(Recipe)).body
    assert isinstance(recipe, ast.ClassDef)
    found = {}
    for pair in pairwise(recipe.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = " ".join(meaning.split())
    return found
