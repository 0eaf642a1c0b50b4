"""`gdn generate`: a prompt continued by a saved model."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

from tyro.conf import Positional


@dataclass(frozen=True)
class Generate:
    """Continue a prompt with a saved model: the completion on standard output, as it is made; its speed after it.

    The prompt is read from standard input unless --prompt is given. --save-state keeps what the model has read,
    prompt and completion, in a file of fixed size (recurrent models; attention's grows with the text); --state goes
    on from there without reading it again.

    Example: gdn generate runs/tiny --prompt "def main(" --temperature 0.8 --top-p 0.95 --max-tokens 200
    """

    checkpoint: Positional[Path]
    """The folder of a model that was saved with its tokenizer."""
    prompt: str | None = None
    """The text to continue. An empty one: a document from its beginning, or with --state from there."""
    max_tokens: int = 128
    """Tokens of the completion, at most."""
    temperature: float = 1.0
    """0: the most probable token each time."""
    top_k: int | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = 1.0
    """Draw from the most probable tokens that together have this probability."""
    min_p: float = 0.0
    """Draw from tokens that are at least this times as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """More than 1: tokens of prompt and completion become less probable."""
    seed: int = 0
    """The same seed draws the same tokens."""
    stop: tuple[str, ...] = ()
    """The completion ends before any of these."""
    state: Path | None = None
    """Start from this file, which --save-state wrote with the same model."""
    save_state: Path | None = None
    """Write the state after the completion to this file."""
    json: bool = False
    """Print one JSON document at the end instead of text."""

    def run(self) -> None:
        from gated_deltanet.cli.report import print_json
        from gated_deltanet.models.sampling import Sampling

        sampling = Sampling(**{field.name: getattr(self, field.name) for field in fields(Sampling)})
        check_save_state(self.save_state)
        document = complete(self, sampling)
        if self.json:
            return print_json(document)
        speed = document["tokens_per_second"]
        rate = "" if speed is None else f", {speed:.1f} tokens/s"
        print(f"{document['tokens']} tokens{rate} ({document['stop_reason']})", file=sys.stderr)


def complete(options: Generate, sampling: Any) -> dict[str, Any]:
    """Show the completion as it is made, unless a JSON document is wanted, and return that document."""
    from gated_deltanet.data import tokenizer
    from gated_deltanet.models import load
    from gated_deltanet.models.generate import stream
    from gated_deltanet.models.session import Session

    session, texts = Session(load(options.checkpoint)), tokenizer.load(options.checkpoint)
    if options.state:
        session.load(options.state)
    prompt = valid(read_prompt(options.state is not None) if options.prompt is None else options.prompt)
    ids, end = texts.encode(prompt).ids, tokenizer.end_of_text(texts)
    if not session.length:
        ids = [end, *ids]  # documents begin so in training
    pieces, times = [], [perf_counter()]
    for piece in stream(session, ids, sampling, tokenizer=texts, end=end):
        pieces.append(piece)
        times.append(perf_counter())
        if not options.json:
            print(piece.text, end="", flush=True)
    if not options.json:
        print(flush=True)
    if options.save_state:
        session.save(options.save_state)
    completion = {"prompt": prompt, "completion": "".join(piece.text for piece in pieces)}
    return completion | measures(times) | {"seed": options.seed, "stop_reason": pieces[-1].reason}


def measures(times: list[float]) -> dict[str, Any]:
    """times: before the prompt was read, then after each token. The first token waits for the prompt, and the speed is
    that of the others."""
    start, first, *_, end = times if len(times) > 2 else [*times, times[-1]]
    tokens = len(times) - 1
    speed = (tokens - 1) / (end - first) if tokens > 1 else None
    return {
        "tokens": tokens,
        "seconds": end - start,
        "seconds_to_first_token": first - start,
        "tokens_per_second": speed,
    }


def read_prompt(may_be_empty: bool) -> str:
    """Of standard input, as it is. At a terminal nobody would know that it is waited for."""
    if not sys.stdin.isatty():
        return sys.stdin.read()
    if may_be_empty:
        return ""
    raise ValueError("there is no prompt, expected --prompt TEXT or a text on standard input")


def valid(prompt: str) -> str:
    """Python lets bytes that are no UTF-8 through, as lone surrogates; tokenizers do not."""
    try:
        return prompt.encode().decode()
    except UnicodeEncodeError as error:
        raise ValueError("the prompt holds bytes that are no UTF-8, expected a text") from error


def check_save_state(file: Path | None) -> None:
    """Before the work, whose result would be lost."""
    if file and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise ValueError(f"--save-state is {file}, expected a file in a folder that exists")
