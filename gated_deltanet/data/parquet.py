"""Rows of a parquet file, with pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow  # pyright: ignore[reportMissingImports]
import pyarrow.parquet  # pyright: ignore[reportMissingImports]

INVALID = object()  # stands for a text that is no UTF-8


def rows(path: Path, field: str) -> Iterator[tuple[object, float]]:
    """The values of one column, each with the share of the file read so far."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    names = file.schema_arrow.names
    if field not in names:
        raise ValueError(f"{path} has no column {field!r}, expected one of {', '.join(names)}")
    n = 0
    for batch in file.iter_batches(1024, columns=[field]):
        n += len(batch)
        for scalar in batch.column(0):
            yield value(scalar), n / file.metadata.num_rows


def whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All columns, a row at a time."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    for batch in file.iter_batches(1024):
        yield from batch.to_pylist()


def value(scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return INVALID
