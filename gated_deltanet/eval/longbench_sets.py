"""The 14 tasks of LongBench in table 5: their rows, of a folder or the hub, and how an answer is scored."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from . import longbench_metrics as metrics
from .sets import Row, Set, read_jsonl, read_rows, text, texts

LENGTH = 16384  # tokens of prompt and answer for a model that names no length of its own
MINI = "longbench_mini/longbench_mini.jsonl.gz"


class Task(NamedTuple):
    title: str  # the paper's, as `group` is
    group: str
    metric: str
    rows: int  # of LongBench


SINGLE, MULTI, SUMMARIES, FEW, CODE = "Single-Doc QA", "Multi-Doc QA", "Summarization", "Few-shot", "Code"
TASKS = {  # by LongBench's names, in the paper's order
    "narrativeqa": Task("NQA", SINGLE, "qa_f1", 200),
    "qasper": Task("QQA", SINGLE, "qa_f1", 200),
    "multifieldqa_en": Task("MFQ", SINGLE, "qa_f1", 150),
    "hotpotqa": Task("HQA", MULTI, "qa_f1", 200),
    "2wikimqa": Task("2WM", MULTI, "qa_f1", 200),
    "musique": Task("Mus", MULTI, "qa_f1", 200),
    "gov_report": Task("GvR", SUMMARIES, "rouge_l", 200),
    "qmsum": Task("QMS", SUMMARIES, "rouge_l", 200),
    "multi_news": Task("MNs", SUMMARIES, "rouge_l", 200),
    "trec": Task("TRC", FEW, "classification", 200),
    "triviaqa": Task("TQA", FEW, "qa_f1", 200),
    "samsum": Task("SSM", FEW, "rouge_l", 200),
    "lcc": Task("LCC", CODE, "code_similarity", 500),
    "repobench-p": Task("RBP", CODE, "code_similarity", 500),
}


def files(name: str) -> tuple[str, ...]:
    """Where a task's rows may be, the first that is there: LongBench's own file, then a part of it."""
    return f"longbench/{name}.jsonl", f"longbench_mini/{name}_full.jsonl.gz", MINI


def local_rows(name: str, folder: Path) -> tuple[str, list[Row]]:
    """The file, and of each row its prompt, or what it is made of, and its answers."""
    found = next((file for file in files(name) if (folder / file).exists()), None)
    if found is None:
        raise FileNotFoundError(f"no {' or '.join(files(name))} in {folder}")

    def read(file: Path) -> Iterator[tuple[int, Row]]:
        return ((number, row) for number, row in read_jsonl(file) if row.get("task", name) == name)

    data = Set(found, "test", TASKS[name].rows, (), lambda row: checked(name, row), read)
    return found, read_rows(data, folder)


def checked(name: str, row: Row) -> Row:
    """answers, prompt or context and question, and TREC's classes."""
    kept: Row = {"answers": texts(row, "answers")}
    if TASKS[name].metric == "classification":
        kept["all_classes"] = texts(row, "all_classes")
    if "prompt" in row:
        return kept | {"prompt": text(row, "prompt")}
    return kept | {"context": text(row, "context"), "question": row.get("question", row.get("input", ""))}


def prompt(row: Row, fill: Callable[[Row], str]) -> str:
    """fill: lm-eval's template of the task, for a row that is not yet a prompt."""
    return row["prompt"] if "prompt" in row else fill(row)


def score(name: str, said: str, row: Row) -> float:
    """Of the answer that is best for it."""
    if TASKS[name].metric == "classification":
        return max(metrics.classification(said.strip(), right, row["all_classes"]) for right in row["answers"])
    metric = getattr(metrics, TASKS[name].metric)
    said = said if TASKS[name].group == CODE else said.strip()  # how code is indented counts
    return max(metric(said, right) for right in row["answers"])
