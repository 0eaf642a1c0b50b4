"""`gdn generate`: a prompt continued by a saved model."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TextIO

from tyro.conf import Positional, arg

INTERRUPTED = "interrupted"
OWN = "(a small one that comes with the package and has learnt Python)"


@dataclass(frozen=True)
class Generate:
    """Continue a prompt with a saved model: the completion on standard output, as it is made; its speed after it.

    The prompt is read from standard input unless --prompt is given. --save-state keeps what the model has read,
    prompt and completion, in a file of fixed size (recurrent models; attention's grows with the text); --state goes
    on from there without reading it again. Ctrl-C ends the completion; what was made by then is shown and saved.

    Example: gdn generate runs/tiny --prompt "def main(" --temperature 0.8 --top-p 0.95 --max-tokens 200
    """

    checkpoint: Positional[Annotated[Path | None, arg(metavar="[CHECKPOINT]", help_behavior_hint=OWN)]] = None
    """The folder of a model that was saved with its tokenizer."""
    prompt: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="(standard input)")] = None
    """Continue this text. An empty one begins a document, or with --state goes on from there."""
    max_tokens: int = 128
    """Write at most so many tokens."""
    temperature: float = 1.0
    """Draw at this temperature; at 0 the most probable token is taken each time."""
    top_k: Annotated[int | None, arg(metavar="N", help_behavior_hint="(all)")] = None
    """Draw from the N most probable tokens only."""
    top_p: float = 1.0
    """Draw from the most probable tokens that together have this probability."""
    min_p: float = 0.0
    """Draw from tokens that are at least this times as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """Make tokens of prompt and completion less probable, if more than 1."""
    seed: int = 0
    """Draw with this seed: the same tokens again, on the same processor with as many threads."""
    stop: tuple[str, ...] = ()
    """End the completion before any of these texts."""
    state: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Start from this file, which --save-state wrote with the same model."""
    save_state: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the state after the completion to this file."""
    weights: Annotated[str | None, arg(metavar="FORMAT", help_behavior_hint="(as they were saved)")] = None
    """Pack the weights first, for speed on a CPU: float32, bfloat16, int8 or int4."""
    draft: Annotated[str | None, arg(metavar="FOLDER|prompt", help_behavior_hint="")] = None
    """Guess at the next tokens, so that the model reads several at once: with a smaller model of the same tokenizer, or
    by what stands in the prompt. Text is as probable as without. Weights are packed for it, as by --weights float32."""
    device: str = "cpu"
    """Run the model here, as torch names it: cpu, cuda, cuda:1, mps."""
    json: bool = False
    """Print one JSON document at the end instead of text."""

    def run(self) -> int | None:
        from gated_deltanet.cli.output import print_json

        check_save_state(self.save_state)
        document = complete(self, sampling_of(self))
        if self.json:
            print_json(document)
        else:
            speed = document["tokens_per_second"]
            rate = "" if speed is None else f", {speed:.1f} tokens/s"
            print(f"{document['tokens']} tokens{rate} ({document['stop_reason']})", file=sys.stderr)
        return 130 if document["stop_reason"] == INTERRUPTED else None


def sampling_of(options: Generate) -> Any:
    """The `Sampling`. What is wrong with it is said of the option, not of the field."""
    from gated_deltanet.models.sampling import Sampling

    try:
        return Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})
    except ValueError as error:
        name, _, rest = str(error).removeprefix("Sampling: ").partition(" ")
        raise ValueError(f"--{name.replace('_', '-')} {rest}") from error


def complete(options: Generate, sampling: Any) -> dict[str, Any]:
    """Show the completion as it is made, unless a JSON document is wanted, and return that document."""
    from gated_deltanet import demo
    from gated_deltanet.cli.loading import load
    from gated_deltanet.data.tokenizer import end_of_text, prompt_ids
    from gated_deltanet.models.generate import stream
    from gated_deltanet.models.session import Session

    folder = options.checkpoint or demo.MODEL
    model, tokenizer = load(folder, options.device, options.weights)
    draft = None if options.draft is None else load_draft(options, folder, model, tokenizer)
    session = Session(model)
    if options.state:
        session.load(options.state)
    may_be_empty = options.state is not None or options.checkpoint is None
    prompt = valid(read_prompt(may_be_empty) if options.prompt is None else options.prompt)
    ids = prompt_ids(tokenizer, prompt)
    if session.length:
        ids = ids[1:]  # the document has begun before
    pieces = stream(session, ids, sampling, tokenizer=tokenizer, end=end_of_text(tokenizer), draft=draft)
    texts, times, reason = shown(pieces, None if options.json else sys.stdout)
    if not session.length:
        raise KeyboardInterrupt  # while the prompt was read: there is nothing to tell or save
    if options.save_state:
        session.save(options.save_state)
    completion = {"prompt": prompt, "completion": "".join(texts)}
    return completion | measures(times) | {"seed": options.seed, "stop_reason": reason}


def load_draft(options: Generate, checkpoint: Path, model: Any, tokenizer: Any) -> Any:
    """What guesses for the model, which is packed if it is not; so is the draft."""
    from gated_deltanet.cli.loading import load
    from gated_deltanet.models.weights import pack_weights, packed_format

    if packed_format(model) is None:
        pack_weights(model, "float32")
    if options.draft == "prompt":
        return options.draft
    folder = Path(str(options.draft))
    if not folder.is_dir():
        raise ValueError(f"--draft is {folder}, expected the folder of a smaller model, or prompt")
    draft, own = load(folder, options.device)
    if own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"--draft is {folder}, which has another vocabulary than {checkpoint}, expected the same")
    return draft if packed_format(draft) else pack_weights(draft, str(packed_format(model)))


def shown(pieces: Iterator[Any], out: TextIO | None) -> tuple[list[str], list[float], str]:
    """The texts of a stream, written out as they come; the time before it and after each; why it ended."""
    texts, times, reason = [], [perf_counter()], INTERRUPTED
    with suppress(KeyboardInterrupt):
        for piece in pieces:
            texts.append(piece.text)
            times.append(perf_counter())
            reason = piece.reason or reason
            if out:
                print(piece.text, end="", file=out, flush=True)
    if out:
        print(file=out, flush=True)
    return texts, times, reason


def measures(times: list[float]) -> dict[str, Any]:
    """times: before the prompt was read, then after each token. The first token waits for the prompt, and the speed is
    that of the others."""
    start, *after = times
    return {
        "tokens": len(after),
        "seconds": times[-1] - start,
        "seconds_to_first_token": after[0] - start if after else None,
        "tokens_per_second": (len(after) - 1) / (after[-1] - after[0]) if len(after) > 1 else None,
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
