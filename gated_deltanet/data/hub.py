"""Rows of a data set of the Hugging Face hub, streamed with `datasets`."""

from collections.abc import Iterator

from datasets import load_dataset  # pyright: ignore[reportMissingImports]


def rows(spec: str, field: str) -> Iterator[object]:
    """The values of one column. spec: dataset[:config[:split]], of the split "train" unless it says so."""
    name, config, split = [*spec.split(":"), "", ""][:3]
    stream = load_dataset(name, config or None, split=split or "train", streaming=True)
    names = stream.column_names
    if names is not None and field not in names:
        raise ValueError(f"hf:{spec} has no column {field!r}, expected one of {', '.join(names)}")
    for row in stream:
        yield row.get(field)
