"""The long corpora of Fig. 2 as files of a folder, and what stands in where the paper's own cannot be had."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gated_deltanet.data.sources import documents

from .sets import Row, read_jsonl, read_text

STORY, QUESTION = "Story: ", "\n\nNow, answer the question based on the story"  # of LongBench's prompt


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
    if not found:
        raise ValueError(f"no document in {folder}/{CORPORA[name].files}")
    return sorted(found, key=lambda text: (-len(text), text))[:limit]


def read(corpus: Corpus, folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob(corpus.files)):
        if file.name.endswith(".jsonl.gz"):
            for number, row in read_jsonl(file):
                try:
                    text = corpus.text(row)
                except KeyError as error:
                    raise ValueError(f"{file}, row {number}: {error.args[0]} is missing") from error
                if text:
                    yield text
        else:
            yield read_text(file)
