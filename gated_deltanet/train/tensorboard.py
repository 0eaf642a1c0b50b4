"""Metrics as TensorBoard's events (the extra `track`)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


@contextmanager
def events(folder: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    with SummaryWriter(str(folder)) as writer:

        def write(record: Mapping[str, Any]) -> None:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):
                    writer.add_scalar(name, value, record["step"])

        yield write
