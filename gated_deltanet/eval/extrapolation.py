"""Fig. 2: perplexity by position, beyond the length a model was trained with; the state is carried all the way."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from gated_deltanet.data.sources import documents
from gated_deltanet.paper import FIG_2, LENGTHS
from gated_deltanet.quantity import show_size
from gated_deltanet.result import Result, Table, Track, answer_each, answer_file, attempt_each, check_any, untracked

from .checkpoint import as_model
from .data_sets import ROWS, Files, Row, find, read_file, read_text

STORY, QUESTION = "Story: ", "\n\nNow, answer the question based on the story"  # of LongBench's prompt


def extrapolation(
    model: Any,
    tokenizer: Any = None,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """The perplexity up to 4K tokens, then in steps of 2K to max_length, on each corpus.

    model, tokenizer: see `eval.as_model`. data_dir: the folder of the corpora; None: the standard library of Python
    stands in for one of them. limit: documents of each corpus, the longest ones. max_length: None: 20480. keep: the
    folder in which losses are kept. track: is given the documents.
    """
    model, folder = as_model(model, tokenizer), Path(data_dir) if data_dir else None
    ends = buckets(max_length)
    refused = beyond_positions(ends, model.max_positions)
    read = [end for end in ends if end not in refused]
    file = answer_file(keep, model.identity, read)

    def losses(some: list[str]) -> list[list[tuple[float, int]]]:
        rows = [[model.first_token, *model.encode(text)] for text in some]
        return [by_bucket(model.losses(row[: read[-1] + 1]), read) for row in rows]

    def evaluate(name: str) -> dict[str, Any]:
        start, found = perf_counter(), texts(name, folder, limit)
        parts = [each for _, each in zip(track(found, name), answer_each(found, losses, file), strict=True)]
        points = curve(parts, read)
        return {"points": points, **source(name, folder), "seconds": perf_counter() - start}

    measured, left_out = attempt_each(CORPORA if folder else [LIBRARY], evaluate)
    check_any(measured, left_out)
    return result({"ends": ends, "refused": refused, "corpora": measured, "left_out": left_out}, model.name)


def result(document: dict[str, Any], name: str) -> Result:
    def draw(file: Path) -> None:
        from .figures import draw_extrapolation

        draw_extrapolation(document, name, file)

    return Result("extrapolation", document, table(document, name), short_table(document, name), notes(document), draw)


def buckets(max_length: int | None) -> list[int]:
    """Where each ends, as in Fig. 2: 4K, then steps of 2K to 20K or to max_length."""
    last = max_length or LENGTHS[-1]
    return [*range(4096, last, 2048), last]


def beyond_positions(ends: list[int], positions: int | None) -> dict[int, str]:
    """Lengths that the model cannot read, and why; an error if that is all of them."""
    reason = f"the model has positions for {positions} tokens"
    found = {end: reason for end in ends if positions is not None and end > positions}
    if len(found) == len(ends):
        raise ValueError(f"nothing could be evaluated: {reason}, expected at least {ends[0]}: --max-length {positions}")
    return found


def source(name: str, folder: Path | None) -> dict[str, Any]:
    """Where a corpus is from, and whether it is the paper's own."""
    if folder is None:
        return {"own": False, "source": "stdlib"}
    files = find_files(name, folder)
    return {"own": CORPORA[name].own, "source": ", ".join(map(str, files.taken)), "files_left_out": files.left_out}


def by_bucket(loss: Tensor, ends: Sequence[int]) -> list[tuple[float, int]]:
    """The sum and the number of the losses before each end and after the one before it."""
    starts = [0, *ends[:-1]]
    parts = [loss[start:end] for start, end in zip(starts, ends, strict=True)]
    return [(float(part.sum()), len(part)) for part in parts]


def curve(documents: Sequence[Sequence[tuple[float, int]]], ends: Sequence[int]) -> list[dict[str, Any]]:
    """The perplexity of each bucket that some document reaches. documents: of each what `by_bucket` returned."""
    points = []
    for end, parts in zip(ends, zip(*documents, strict=True), strict=True):
        reached = [(total, n) for total, n in parts if n]
        if reached:
            points.append({"length": end, **perplexity(reached)})
    return points


def perplexity(parts: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """With its standard error: documents are drawn, not tokens."""
    tokens, n = sum(count for _, count in parts), len(parts)
    mean = sum(total for total, _ in parts) / tokens
    squares = sum((total - mean * count) ** 2 for total, count in parts)
    error = math.sqrt(squares * n / (n - 1)) / tokens if n > 1 else None
    value = math.exp(mean) if mean < 700 else math.inf
    return {
        "perplexity": value,
        "stderr": None if error is None else value * error,
        "tokens": tokens,
        "documents": n,
    }


class Corpus(NamedTuple):
    """files: a pattern. text: of a row of jsonl, or None. own: whether the documents are of the paper's corpus."""

    files: str
    text: Callable[[Row], str | None] = lambda row: row["text"]
    own: bool = True


def meeting(row: Row) -> str:
    return "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in row["meeting_transcripts"])


def story(row: Row) -> str | None:
    if row["task"] != "narrativeqa":
        return None
    return row["prompt"].partition(STORY)[2].rpartition(QUESTION)[0] or None


LIBRARY = "CodeParrot"  # for which the standard library of the running interpreter stands in where there is no folder
CORPORA = {  # by their names in Fig. 2
    "GovReport": Corpus("govreport/*.jsonl.gz"),
    "QMSum": Corpus("qmsum/*.jsonl.gz", meeting),
    "NarrativeQA": Corpus("longbench_mini/longbench_mini.jsonl.gz", story),
    "Qasper": Corpus("qasper/papers.jsonl.gz"),
    LIBRARY: Corpus("code_python_stdlib/*.jsonl.gz", own=False),
    "PG19": Corpus("novels_en/test/*.txt.gz", own=False),
}


def texts(name: str, folder: Path | None, limit: int | None) -> list[str]:
    """The longest documents of a corpus, the longest first. folder: None: the standard library."""
    found = [each.text for each in documents("stdlib")] if folder is None else list(read(CORPORA[name], folder))
    if not found and folder is not None:
        left_out = find_files(name, folder).left_out
        why = "".join(f"; {file} is none: {reason}" for file, reason in left_out.items())
        raise ValueError(f"no document in {folder}/{CORPORA[name].files}{why}")
    return sorted(found, key=lambda text: (-len(text), text))[:limit]


def find_files(name: str, folder: Path) -> Files:
    """The documented files, or others of their shape; and those that are not read, with the reason."""
    corpus = CORPORA[name]
    return find(folder, corpus.files, lambda file: next(documents_in(corpus, file), None))


def read(corpus: Corpus, folder: Path) -> Iterator[str]:
    for file in find(folder, corpus.files, lambda file: next(documents_in(corpus, file), None)).taken:
        yield from documents_in(corpus, file)


def documents_in(corpus: Corpus, file: Path) -> Iterator[str]:
    if not file.name.endswith(ROWS):
        yield read_text(file)
        return
    for number, row in read_file(file):
        try:
            text = corpus.text(row)
        except KeyError as error:
            raise ValueError(f"{file}, row {number}: {error.args[0]} is missing") from error
        if text:
            yield text


def table(document: dict[str, Any], name: str) -> Table:
    """Ours, and below it the paper's, for each corpus."""
    ends = document["ends"]
    cells = []
    for corpus, found in document["corpora"].items():
        ours = {point["length"]: point for point in found["points"]}
        shown = [f"{ours[end]['perplexity']:.2f}" if end in ours else "–" for end in ends]
        cells.append([corpus, f"**{name}**", *shown])
        cells.append(["", "documents", *(str(ours[end]["documents"]) if end in ours else "–" for end in ends)])
        for model, values in FIG_2[corpus].items():
            paper = dict(zip(LENGTHS, values, strict=True))
            cells.append(["", f"{model} 1.3B (paper)", *(str(paper.get(end, "")) for end in ends)])
    return "Perplexity by position (Fig. 2)", ["corpus", "model", *map(show_size, ends)], cells


def short_table(document: dict[str, Any], name: str) -> Table:
    """For a terminal: our perplexities, one line a length."""
    curves = [{p["length"]: f"{p['perplexity']:.2f}" for p in x["points"]} for x in document["corpora"].values()]
    lines = [[show_size(end), *(curve.get(end, "–") for curve in curves)] for end in document["ends"]]
    return f"Perplexity by position (Fig. 2): {name}", ["up to", *document["corpora"]], lines


def notes(document: dict[str, Any]) -> list[str]:
    others = [name for name, found in document["corpora"].items() if not found["own"]]
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *(f"Left out: up to {show_size(end)}: {reason}." for end, reason in document["refused"].items()),
        *([f"Other texts stand in for the paper's: {', '.join(others)}."] if others else []),
        "A length stands for the positions up to it and after the one before.",
        "Perplexities of models with other tokenizers do not compare; how they change with the length does.",
    ]
