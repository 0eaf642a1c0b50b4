"""A session's state as a safetensors file that knows which model it is of."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gated_deltanet import files

from .model import CausalLM, State

FORMAT, VERSION = "gated_deltanet session", "1"


def save(file: str | Path, model: str, length: int, state: State, x: Tensor) -> None:
    """A session's `Point`. model: its fingerprint. The file appears under its name when it is whole."""
    named = {"x": x} | named_tensors(state)
    named = {name: x.detach().cpu().contiguous() for name, x in named.items()}
    header = {"format": FORMAT, "version": VERSION, "model": model, "length": str(length)}
    header["digest"] = digest(named, header)
    files.write(Path(file), lambda unfinished: save_file(named, unfinished, metadata=header))


def load(file: str | Path, model: CausalLM, fingerprint: str) -> tuple[int, State, Tensor]:
    """The `Point`, on the model's device. fingerprint: the model's."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}, expected a saved session")
    header, named = files.read_tensors(Path(file))
    if header.get("format") != FORMAT:
        raise ValueError(f"{file}: format is {header.get('format')!r}, expected {FORMAT!r}")
    if header.get("version") != VERSION:
        raise ValueError(f"{file}: version is {header.get('version')!r}, expected {VERSION!r}")
    if header.get("model") != fingerprint:
        raise ValueError(f"{file} is of another model, expected one of the same config and weights")
    if header.pop("digest", None) != digest(named, header):
        raise ValueError(f"{file} is damaged, expected what its digest says")
    device, empty = model.device, empty_state(model)
    if named.keys() != {"x", *named_tensors(empty)} or not header.get("length", "").isdecimal():
        raise ValueError(f"{file} is damaged, expected a length and the state of each layer")
    named = {name: x.to(device) for name, x in named.items()}
    return int(header["length"]), filled(empty, named), named["x"]


def named_tensors(state: Any, name: str = "layers") -> dict[str, Tensor]:
    """By the fields that lead to them: "layers.0.S". What is None is left out."""
    if isinstance(state, Tensor):
        return {name: state}
    parts = {} if state is None else part_names(state)
    return {key: x for part, value in parts.items() for key, x in named_tensors(value, f"{name}.{part}").items()}


def filled(state: Any, named: Mapping[str, Tensor], name: str = "layers") -> Any:
    """The same structure with the tensors of these names."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else named[name]
    parts = [filled(value, named, f"{name}.{part}") for part, value in part_names(state).items()]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def part_names(state: Any) -> dict[str, Any]:
    return dict(zip(getattr(state, "_fields", map(str, range(len(state)))), state, strict=True))


@torch.no_grad()
def empty_state(model: CausalLM) -> State:
    """Of no particular tokens: what kind of state each layer has."""
    return model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=model.device))[1]


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
            self.value = digest_of_model(model)
        self.model, self.versions = model, now
        return self.value


def digest_of_model(model: CausalLM) -> str:
    return digest(model.state_dict(), model.config.to_dict())


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
