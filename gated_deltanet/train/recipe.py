"""Every setting of a run, in one frozen dataclass."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gated_deltanet.naming import unknown
from gated_deltanet.quantity import parse_count, parse_size

DTYPES = ("auto", "float32", "bfloat16")
IN_POWERS_OF_TWO = ("length", "batch_tokens")


@dataclass(frozen=True)
class Recipe:
    """What a run does. What the paper gives (section 4) is the default. Whole numbers may be written 4K or 100B."""

    preset: str
    """The model, a name `gdn presets` lists; its vocabulary becomes the tokenizer's."""
    data: str = "stdlib"
    """stdlib, a file, folder or glob of texts, several with commas, or a folder that `gdn data prepare` made."""
    tokenizer: str = "bytes"
    """bytes, mistral, bpe:SIZE (made from the data), a folder or a name on the hub. Of several, with commas, the first
    that can be had."""
    valid: float = 0.01
    """The share of the documents that is kept for validation."""
    seed: int = 0
    """Of the weights, of the order of the data, and of samples."""
    length: int = 4096
    """Positions in a row."""
    reset: bool = True
    """Whether each document begins with an empty state; else each row."""
    tokens: int = 100_000_000_000
    """To train on in all, rounded up to whole steps."""
    batch_tokens: int = 524_288
    """In a step, on all ranks together."""
    micro_rows: int = 4
    """Rows that a rank takes at a time; the gradient does not depend on it."""
    peak_lr: float = 4e-4
    """The learning rate after the warm-up."""
    final_lr: float = 0.1
    """What a cosine takes it down to, as a share of the peak."""
    warmup_tokens: int = 1_000_000_000
    """In which it rises from nothing to the peak."""
    beta1: float = 0.9
    """AdamW's memory of the gradient."""
    beta2: float = 0.95
    """AdamW's memory of its square."""
    eps: float = 1e-8
    """AdamW's."""
    weight_decay: float = 0.1
    """Of matrices, embeddings too; not of norms, biases, A_log, dt_bias and other vectors."""
    clip: float = 1.0
    """The largest norm of the gradient."""
    dtype: str = "auto"
    """Of matrix products: float32, bfloat16 (autocast; weights stay float32), or auto: what the hardware is fast in."""
    checkpointing: bool = False
    """Whether blocks are run again in backward instead of keeping their activations."""
    compile: bool = False
    """Whether torch.compile makes the blocks."""
    parallel: str = "auto"
    """With several processes: ddp (what auto means), fsdp, or hsdp:RxS, R replicas of S shards."""
    validate_every: int = 1000
    """Steps from one validation to the next; there is one at the end, too."""
    validate_tokens: int = 10_000_000
    """At most, of whole documents."""
    checkpoint_every: int = 1000
    """Steps from one checkpoint to the next; there is one at the end, too."""
    keep: int = 2
    """Checkpoints to keep, the newest."""
    sample_tokens: int = 128
    """Of the text the model writes at each validation; 0: none."""
    sample_prompt: str = "def "
    """How it begins."""
    bad_steps: int = 10
    """Steps in a row that may be skipped because loss or gradient are not finite, before the run stops."""
    spike: float = 0.0
    """Skip a step whose gradient is so many times larger than the median of the last hundred; 0: never."""

    def __post_init__(self):
        # here: `gdn --help` wants the fields above, and no torch
        from gated_deltanet.layers.fields import check_choice, check_positive, check_sizes, check_switches
        from gated_deltanet.models.presets import PRESETS

        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)
        check_choice(self, "dtype", DTYPES)
        check_switches(self, "reset", "checkpointing", "compile")
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
    def batch_rows(self) -> int:
        return self.batch_tokens // self.length

    @property
    def steps(self) -> int:
        return -(-self.tokens // self.batch_tokens)


def from_values(values: Mapping[str, Any]) -> Recipe:
    """Of values as TOML and the command line give them."""
    types = {field.name: field.type for field in fields(Recipe)}
    for name in values:
        if name not in types:
            raise unknown("setting", name, types)
    return Recipe(**{name: typed(name, value, types[name]) for name, value in values.items()})


def to_values(recipe: Recipe) -> dict[str, Any]:
    return asdict(recipe)


def typed(name: str, value: Any, kind: Any) -> Any:
    """A whole number may be a text, 100B; a number may be whole; else the type must be right."""
    if kind is int and not isinstance(value, bool):
        return whole(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind):
        raise ValueError(f"Recipe: {name} is {value!r}, expected {KINDS[kind]}")
    return value


KINDS = {str: "a text", float: "a number", bool: "true or false"}


def whole(name: str, value: Any) -> int:
    """100B tokens are 10¹¹; 4K of length are 4,096, and a batch of 0.5M tokens is one of 2¹⁹."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):  # TOML's 1e9
        if not value.is_integer():
            raise ValueError(f"Recipe: {name} is {value}, expected a whole number")
        return int(value)
    text = str(value).strip()
    if text.isdigit():
        return int(text)
    return parse_size(name, text) if name in IN_POWERS_OF_TWO else parse_count(name, text)
