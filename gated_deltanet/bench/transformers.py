"""Models of transformers' own, stock and by our ops: reading, writing, fine-tuning, and the memory it takes."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gated_deltanet.interop.transformers import accelerate_transformers

from . import llama, machine, memory
from .timing import turns

LAYERS = [*["linear_attention"] * 3, "full_attention"] * 3
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 12,
    "layer_types": LAYERS,
    "vocab_size": 8192,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN3_5 = SIZES | {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
OLMO_HYBRID = SIZES | {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 96,
    "linear_value_head_dim": 192,
}
MODELS = {"qwen3.5": ("qwen3_5_text", QWEN3_5), "olmo-hybrid": ("olmo_hybrid", OLMO_HYBRID)}
DTYPES = ("float32", "bfloat16")
WORK = {"prefill 512": 512, "prefill 4096": 4096, "decode": 64, "fine-tuning": 1024}  # tokens read; of decode before
STEPS = 16  # tokens decoded in a turn
LLAMA = "llama.cpp"  # beside stock and accelerated, where it is installed and has the model

Row = dict[str, Any]


class Cell(NamedTuple):
    model: str
    dtype: str
    work: str


def transformers(
    models: Sequence[str] = tuple(MODELS),
    *,
    dtypes: Sequence[str] = DTYPES,
    work: Sequence[str] = tuple(WORK),
    rounds: int = 3,
    minutes: float = 30,
    layers: int | None = None,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Random models of 257 M parameters, stock, accelerated and in llama.cpp, in turns: a document of JSON values.

    models: of MODELS. work: of WORK. rounds: turns of each, of which none but the first begins that would end after
    `minutes`. layers: so many of their twelve. track: wraps the turns to show progress.
    """
    for option, values, known in (("models", models, MODELS), ("dtypes", dtypes, DTYPES), ("work", work, WORK)):
        if unknown := [value for value in values if value not in known]:
            raise ValueError(f"--{option}: {unknown[0]!r}, expected some of {', '.join(known)}")
    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}, expected at least 1")
    if layers is not None and not 1 <= layers <= len(LAYERS):
        raise ValueError(f"--layers is {layers}, expected 1 to {len(LAYERS)}")
    settings = {"models": list(models), "dtypes": list(dtypes), "work": list(work), "rounds": rounds, "layers": layers}
    cells = [Cell(*cell) for cell in ((m, d, w) for m in models for d in dtypes for w in work)]
    document, rows = machine.record(settings), []
    seconds, made = 60 * minutes / max(1, len(cells)), None
    for cell in track(cells):
        if made is None or made[0] != cell[:2]:
            made = None  # before the next one is made
            model = model_of(cell.model, cell.dtype, layers)
            made = cell[:2], model, in_llama_cpp(model, cell)
        rows += measure(*made[1:], cell, rounds, seconds)
    return {**document, "rows": rows}


def model_of(name: str, dtype: str, layers: int | None = None) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    if layers is not None:
        sizes = sizes | {"num_hidden_layers": layers, "layer_types": LAYERS[-layers:]}
    config = AutoConfig.for_model(kind, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def in_llama_cpp(model: Any, cell: Cell) -> Any:
    """The same model there, where llama.cpp is installed and has such a model; else None."""
    if MODELS[cell.model][0] != "qwen3_5_text" or not llama.installed():
        return None
    return llama.load(model, cell.dtype, max(WORK.values()) + STEPS)


def measure(model: Any, there: Any, cell: Cell, rounds: int, seconds: float) -> list[Row]:
    """A row for each: the best of its turns, and the most memory it held before the first."""
    calls, best, held = contestants(model, there, cell.work), dict[str, float](), dict[str, int | None]()
    for who in turns(list(calls), rounds, seconds):
        if who not in held:  # it warms up, too
            held[who] = memory.peak_bytes(calls[who])
        best[who] = min(best.get(who, float("inf")), calls[who]())
    if LLAMA in held:
        held[LLAMA] = None  # it has all it needs before
    return [row(model, cell, who, best, held) for who in calls]


def contestants(model: Any, there: Any, work: str) -> dict[str, Callable[[], float]]:
    """What each does in its turn, for which it returns the seconds. there: the model in llama.cpp, or None."""
    tokens = torch.randint(model.config.vocab_size, (1, WORK[work]), generator=torch.Generator().manual_seed(0))
    run = {"decode": decode, "fine-tuning": fine_tune}.get(work, prefill)

    def accelerated() -> float:
        with accelerate_transformers():
            return run(model, tokens)

    calls: dict[str, Callable[[], float]] = {"stock": partial(run, model, tokens), "accelerated": accelerated}
    if there is not None and work != "fine-tuning":
        read = partial(llama.decode, steps=STEPS) if work == "decode" else llama.prefill
        calls[LLAMA] = partial(read, there, tokens[0].tolist())
    return calls


def row(model: nn.Module, cell: Cell, who: str, best: dict[str, float], held: dict[str, int | None]) -> Row:
    ours, theirs = held["accelerated"], held["stock"]
    n = STEPS if cell.work == "decode" else WORK[cell.work]
    return {
        **cell._asdict(),
        "who": who,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": best[who],
        "tokens_per_second": n / best[who],
        "times_stock": best["stock"] / best[who],
        "peak_bytes": held[who],
        "memory_of_stock": ours / theirs if who == "accelerated" and ours is not None and theirs else None,
    }


@torch.no_grad()
def prefill(model: Any, tokens: Tensor) -> float:
    """Seconds."""
    start = perf_counter()
    model(tokens, use_cache=True, logits_to_keep=1)
    return perf_counter() - start


@torch.no_grad()
def decode(model: Any, tokens: Tensor) -> float:
    """Of STEPS tokens, each the most probable one, after the others are read."""
    out = model(tokens, use_cache=True, logits_to_keep=1)
    start = perf_counter()
    for _ in range(STEPS):
        out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
    return perf_counter() - start


def fine_tune(model: Any, tokens: Tensor) -> float:
    """Of one step that trains all weights: forward, loss, backward, AdamW."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    start = perf_counter()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    seconds = perf_counter() - start
    model.zero_grad()
    model.eval()
    return seconds
