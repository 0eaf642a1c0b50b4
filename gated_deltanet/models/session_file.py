"""A session's state as a safetensors file that knows which model it is of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checkpoint import write
from .fingerprint import digest
from .model import CausalLM, State

FORMAT, VERSION = "gated_deltanet session", "1"


def save(file: str | Path, model: str, length: int, state: State, x: Tensor) -> None:
    """A session's `Point`. model: its fingerprint. The file appears under its name when it is whole."""
    named = {"x": x} | named_tensors(state)
    named = {name: x.detach().cpu().contiguous() for name, x in named.items()}
    header = {"format": FORMAT, "version": VERSION, "model": model, "length": str(length)}
    header["digest"] = digest(named, header)
    write(Path(file), lambda unfinished: save_file(named, unfinished, metadata=header))


def load(file: str | Path, model: CausalLM, fingerprint: str) -> tuple[int, State, Tensor]:
    """The `Point`, on the model's device. fingerprint: the model's."""
    header, named = read(file)
    if header.get("format") != FORMAT:
        raise ValueError(f"{file}: format is {header.get('format')!r}, expected {FORMAT!r}")
    if header.get("version") != VERSION:
        raise ValueError(f"{file}: version is {header.get('version')!r}, expected {VERSION!r}")
    if header.get("model") != fingerprint:
        raise ValueError(f"{file} is of another model, expected one of the same config and weights")
    if header.pop("digest", None) != digest(named, header):
        raise ValueError(f"{file} is damaged, expected what its digest says")
    device = model.head_weight.device
    named = {name: x.to(device) for name, x in named.items()}
    return int(header["length"]), filled(empty_state(model), named), named["x"]


def read(file: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}, expected a saved session")
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.metadata() or {}, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error


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
    return model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=model.head_weight.device))[1]
