"""An lm-eval model whose answers are kept as they are made, so that an evaluation that was killed goes on.

One line of JSON each; lm-eval's own cache would be unpickled. Needs lm-eval.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from .answers import kept


class Remembering(LM):
    """model: tells this one each answer as soon as it has it, as its cache hook."""

    def __init__(self, model: Any, file: Path):
        super().__init__()
        self.model, self.file, self.known = model, file, kept(file)
        model.set_cache_hook(self)

    def add_partial(self, kind: str, asked: Iterable[Any], answer: Any) -> None:
        """Whoever calls it: the model for one answer, or `_answer` for those it did not tell."""
        if (key := key_of(kind, asked)) not in self.known:
            self.known[key] = answer
            with self.file.open("a") as lines:
                lines.write(json.dumps([key, answer]) + "\n")

    def _answer(self, kind: str, requests: list[Any]) -> list[Any]:
        unknown = [request for request in requests if key_of(kind, request.args) not in self.known]
        if unknown:
            for request, answer in zip(unknown, getattr(self.model, kind)(unknown), strict=True):
                self.add_partial(kind, request.args, answer)
        found = (self.known[key_of(kind, request.args)] for request in requests)
        return [tuple(answer) if isinstance(answer, list) else answer for answer in found]

    def loglikelihood(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
        return self._answer("generate_until", requests)


def key_of(kind: str, asked: Iterable[Any]) -> str:
    return sha256(json.dumps([kind, *asked], sort_keys=True).encode()).hexdigest()[:32]
