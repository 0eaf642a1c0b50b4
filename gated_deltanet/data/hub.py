"""Data sets of the Hugging Face hub, with `datasets`."""

from collections.abc import Iterator
from pathlib import Path

from datasets import config, load_dataset  # pyright: ignore[reportMissingImports]
from datasets.naming import camelcase_to_snakecase  # pyright: ignore[reportMissingImports]

from .reach import check_data_set


def check_available(dataset: str) -> None:
    """That it was downloaded before, or that the hub can be asked for it."""
    *owner, name = dataset.split("/")
    folder = "___".join([*owner, camelcase_to_snakecase(name)])
    if not (config.HF_DATASETS_CACHE / folder).is_dir():
        check_data_set(dataset)


def rows(spec: str, field: str) -> Iterator[object]:
    """The values of one column, streamed. spec: dataset[:config[:split]], of the split "train" unless it says so."""
    name, config, split = [*spec.split(":"), "", ""][:3]
    if not Path(name).exists():  # which `datasets` reads, too
        check_data_set(name)
    stream = load_dataset(name, config or None, split=split or "train", streaming=True)
    names = stream.column_names
    if names is not None and field not in names:
        raise ValueError(f"hf:{spec} has no column {field!r}, expected one of {', '.join(names)}")
    for row in stream:
        yield row.get(field)
