"""What suites share whose models write on from prompts: recall and longbench."""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from gated_deltanet.cli.eval import Eval

from .report import answers

AT_ONCE = 16  # prompts, after which their answers are kept


def open_speaker(options: Eval, document: dict[str, Any], default: int) -> Any:
    """The model, and in the document what it was run with. default: tokens of prompt and answer."""
    if find_spec("lm_eval") is None:
        raise ModuleNotFoundError(f"--suite {options.suite} needs lm-eval: pip install 'gated-deltanet[eval]'")
    from gated_deltanet.eval import speaker

    found = speaker.open_speaker(options.checkpoint, options.max_length, default, options.device)
    document["length"] = found.length
    document["versions"] = {name: version(name) for name in ("lm_eval", "datasets", "transformers", "torch")}
    return found


def write_on(options: Eval, speaker: Any, name: str, prompts: Sequence[str], settings: dict[str, Any]) -> list[str]:
    """From each prompt; those of like length together."""
    from gated_deltanet.eval.speaker import speak

    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    sorted_prompts = [prompts[i] for i in order]
    kept_for = (settings, speaker.length)
    said = answers(options, name, sorted_prompts, lambda some: speak(speaker, some, settings), AT_ONCE, kept_for)
    return [text for _, text in sorted(zip(order, said, strict=True))]
