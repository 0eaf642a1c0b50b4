"""Table 5: long contexts, 14 tasks of LongBench."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gated_deltanet.paper import TABLE_5
from gated_deltanet.result import Result, Track, untracked

from . import paper_table
from .checkpoint import as_model
from .data_sets import ROWS, Row, Set, hub_rows, read_file, read_rows, text, texts
from .paper_table import Column, Layout, mean_score, versions
from .prompting import complete_all, cut_middle, length_of, room

LENGTH = 16384  # tokens of prompt and answer for a model that names no length of its own
MINI = "longbench_mini/longbench_mini.jsonl.gz"
UNMARKED = str.maketrans("", "", string.punctuation)


def longbench(
    model: Any,
    tokenizer: Any = None,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    keep: str | Path | None = None,
    track: Track = untracked,
) -> Result:
    """The scores of LongBench's own metrics, by task and group. Needs lm-eval, which has the prompts.

    model, tokenizer: see `eval.as_model`. data_dir: the folder of the data sets; None: the hub's. limit: questions of
    each task, the first ones. max_length: tokens of prompt and answer; None: 16384, or fewer if the model is made for
    fewer. keep: the folder in which answers are kept. track: is given the prompts.
    """
    from .lm_eval_tasks import recipe

    model, folder = as_model(model, tokenizer), Path(data_dir) if data_dir else None
    length = length_of(model, max_length, LENGTH)

    def evaluate(name: str) -> dict[str, Any]:
        start, task = perf_counter(), recipe(f"longbench_{name}")
        max_tokens, stop = task.sampling.max_tokens, task.sampling.stop
        free = room(model, length, max_tokens)
        source, rows = read_task(name, folder, task)
        used = rows[:limit]
        whole = [prompt(row, task.fill) for row in used]
        prompts = [cut_middle(each, free, model) for each in whole]
        completions = complete_all(model, prompts, max_tokens, stop, keep=keep, track=track, what=name)
        return {
            "source": source,
            "rows": len(used),
            "rows_held": len(rows),
            "cut": sum(cut != each for cut, each in zip(prompts, whole, strict=True)),
            "as_in_the_paper": len(used) == TASKS[name].rows,
            "seconds": perf_counter() - start,
            "task_version": task.version,
            **mean_score(TASKS[name].metric, [score(name, *pair) for pair in zip(completions, used, strict=True)]),
        }

    document = {"length": length, "versions": versions()}
    return result(document | paper_table.measure(LAYOUT, TASKS, evaluate), model.name)


def result(document: dict[str, Any], name: str) -> Result:
    return paper_table.result("longbench", LAYOUT, document, name, notes(document))


def notes(document: dict[str, Any]) -> list[str]:
    """Where numbers do not compare with the paper's, and why."""
    sets = document["sets"]
    part = [f"{name} {x['rows']} of {TASKS[name].rows}" for name, x in sets.items() if not x["as_in_the_paper"]]
    cut, rows = (sum(found[of] for found in sets.values()) for of in ("cut", "rows"))
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        *([f"Not all rows of LongBench, too few to compare with the paper: {', '.join(part)}."] if part else []),
        *(["Avg is of all 14 tasks, and not all are here."] if document["row"]["Avg"] is None else []),
        "QA: F1 of words; summaries and SSM: ROUGE-L; TRC: classes named; code: similarity of a line. All in percent.",
        f"Prompt and answer take {document['length']} tokens; longer prompts lose their middle ({cut} of {rows}).",
        "The paper gives no length of its inputs; how Transformer++ fails suggests more than the 4K of its training.",
        "The paper prints no means of groups, these are of its numbers; its Avg is as printed (docs/errata.md).",
    ]


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
    *own, mini = files(name)
    found = next((file for file in (*own, *others(name, folder), mini) if (folder / file).exists()), None)
    if found is None:
        raise FileNotFoundError(f"no {' or '.join(files(name))} in {folder}")

    def read(file: Path) -> Iterator[tuple[int, Row]]:
        return ((number, row) for number, row in read_file(file) if row.get("task", name) == name)

    data = Set(found, "test", TASKS[name].rows, (), lambda row: checked(name, row), read)
    return found, read_rows(data, folder)


def others(name: str, folder: Path) -> list[str]:
    """Files that are named as the task is, in another format or with more behind it; _e is LongBench-E, another set."""
    found = [
        file for where in ("longbench", "longbench_mini") for file in sorted((folder / where).glob(f"{name}[._-]*"))
    ]
    fit = [file for file in found if file.name.endswith(ROWS) and not file.name.startswith(f"{name}_e.")]
    return [str(file.relative_to(folder)) for file in fit]


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


def read_task(name: str, folder: Path | None, task: Any) -> tuple[str, list[Row]]:
    """Where the rows are from, and the rows. task: lm-eval's recipe."""
    if folder:
        file, rows = local_rows(name, folder)
        return str(folder / file), rows
    rows = hub_rows(task.dataset, task.name, task.split, lambda row: checked(name, row))
    return f"hub: {task.dataset} {task.name}", rows


def score(name: str, said: str, row: Row) -> float:
    """Of the answer that is best for it."""
    if TASKS[name].metric == "classification":
        return max(classification(said.strip(), right, row["all_classes"]) for right in row["answers"])
    metric = METRICS[TASKS[name].metric]
    said = said if TASKS[name].group == CODE else said.strip()  # how code is indented counts
    return max(metric(said, right) for right in row["answers"])


def qa_f1(said: str, right: str) -> float:
    """The harmonic mean of precision and recall over words, each as often as it is there."""
    here, there = Counter(plain_words(said)), Counter(plain_words(right))
    common = (here & there).total()
    return 2 * common / (here.total() + there.total()) if common else 0.0


def plain_words(text: str) -> list[str]:
    """In lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(UNMARKED)).split()


def rouge_l(said: str, right: str) -> float:
    """ROUGE-L of whole summaries as the package `rouge` has it, over sets: the words that some sentence of the one has
    in common with some sentence of the other, in order, counted once each."""
    here, there = sentences(said), sentences(right)
    if not here or not there:
        return 0.0
    common = {word for a in there for b in here for word in common_words(a, b)}
    precision, recall = (len(common) / len({word for each in side for word in each}) for side in (here, there))
    return 2 * precision * recall / (precision + recall + 1e-8)


def sentences(text: str) -> list[list[str]]:
    """The words of what full stops separate. Nothing but spaces is a sentence too, of one empty word."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def common_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """A longest common subsequence; of several the one that is found from the end, leaving out words of b first."""
    lengths = [[0] * (len(b) + 1)]
    for word in a:
        above, here = lengths[-1], [0]
        for j, other in enumerate(b):
            here.append(above[j] + 1 if word == other else max(above[j + 1], here[j]))
        lengths.append(here)
    found, i, j = [], len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            found.append(a[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def classification(said: str, right: str, classes: Sequence[str]) -> float:
    """One over the number of classes that are named, if the right one is; those in its own name do not count."""
    named = [each for each in classes if each in said and (each == right or each not in right)]
    return 1 / len(named) if right in named else 0.0


def code_similarity(said: str, right: str) -> float:
    """How alike the first line of code is, in hundredths, by matching blocks of characters."""
    lines = (line for line in said.split("\n") if line.strip() and not any(mark in line for mark in ("`", "#", "//")))
    line = next(lines, "")
    return 1.0 if line == right else round(100 * SequenceMatcher(None, line, right).ratio()) / 100


# Each in [0, 1], to the digit those of lm-eval, which needs three packages for them. said: what the model wrote; right:
# one of the answers that count.
METRICS: dict[str, Callable[[str, str], float]] = {
    "qa_f1": qa_f1,
    "rouge_l": rouge_l,
    "code_similarity": code_similarity,
}


def columns() -> tuple[Column, ...]:
    """The tasks of each group, then its mean; at the end the mean of all."""
    found, scores = [], {name: (name, task.metric) for name, task in TASKS.items()}
    for group, names in groupby(TASKS, key=lambda name: TASKS[name].group):
        names = tuple(names)
        found += [Column(TASKS[name].title, (scores[name],)) for name in names]
        found.append(Column(group, tuple(scores[name] for name in names)))
    return (*found, Column("Avg", tuple(scores.values())))


LAYOUT = Layout("Long contexts, 14 tasks of LongBench (table 5)", columns(), TABLE_5)
