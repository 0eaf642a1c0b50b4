"""Which model a state is of."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .model import CausalLM


class Fingerprint:
    """Of config and weights: models that agree in it make the same state of the same tokens.

    It is computed again only when a tensor of the model is another or was changed in place, which torch counts
    (changes through `.data` it does not).
    """

    def __init__(self):
        self.model: CausalLM | None = None
        self.versions: list[tuple[int, int]] | None = None
        self.value = ""

    def of(self, model: CausalLM) -> str:
        now = versions(model)
        if now is None or now != self.versions or model is not self.model:
            self.value = digest(model.state_dict(), model.config.to_dict())
        self.model, self.versions = model, now
        return self.value


def versions(model: CausalLM) -> list[tuple[int, int]] | None:
    """Where each tensor is, and how often it was changed; None if torch does not count."""
    tensors = [*model.parameters(), *model.buffers()]
    return None if any(x.is_inference() for x in tensors) else [(x.data_ptr(), x._version) for x in tensors]


def digest(named: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    """SHA-256 of names, dtypes, shapes, values and a header that JSON can hold."""
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, x in sorted(named.items()):
        sha.update(f"{name} {x.dtype} {list(x.shape)}".encode())
        sha.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
