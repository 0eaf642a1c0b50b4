"""The data sets of tables 3 to 5 as tiny files, in the format of the real ones."""

import gzip
import json
from pathlib import Path

from gated_deltanet.eval.commonsense import SETS as COMMONSENSE
from gated_deltanet.eval.longbench import MINI, TASKS
from gated_deltanet.eval.recall import SETS as RECALL

CHOICES = {"text": ["iron", "a feather", "a stone of some size", "water"], "label": ["A", "B", "C", "D"]}
WIKITEXT = " \n = First = \n \n One @-@ two , three . \n \n = = Part = = \n \n More . \n \n = Second = \n \n Four . \n"
ROWS = {
    "lambada_openai": [{"text": f"the cat saw the dog and said: {word} dog"} for word in ("good", "bad", "old")],
    "piqa": [
        {"goal": f"How to boil {n} eggs?", "sol1": "In water.", "sol2": "In sand, for hours.", "label": n % 2}
        for n in range(3)
    ],
    "hellaswag": [
        {
            "ind": n,
            "activity_label": "Cooking",
            "ctx_a": f"A man stands in kitchen {n}.",
            "ctx_b": "he",
            "ctx": "unused",
            "endings": ["boils eggs.", "[title] flies away.", "sits on the roof.", "sings."],
            "label": str(n),
        }
        for n in range(3)
    ],
    "winogrande": [
        {"sentence": "Ann met Sue in the park and _ said hello.", "option1": "Ann", "option2": "Sue", "answer": "2"}
    ]
    * 2,
    "arc_easy": [{"id": "1", "question": "Which one is light?", "choices": CHOICES, "answerKey": "B"}] * 2,
    "arc_challenge": [{"id": "2", "question": "Which one is wet?", "choices": CHOICES, "answerKey": "D"}] * 2,
    "boolq": [{"question": f"is {n} even", "answer": n % 2 == 0, "passage": "Numbers. " * 9} for n in range(3)],
    "social_iqa": [
        {
            "context": "Ann gave Sue a book.",
            "question": "Why?",
            "answerA": "to read",
            "answerB": "to eat",
            "answerC": "to burn",
            "label": "1",
        }
    ]
    * 2,
}

QUESTIONS = [
    {"context": f"Ann has {n} cats. [PAR] She likes them.", "question": "How many cats has Ann?", "answers": [str(n)]}
    for n in range(3)
]
RECALL_ROWS = {
    "squad": QUESTIONS,
    "fda": [{"doc_id": "K1", "key": "product code", "value": "OSK", "text": "# Summary\nProduct code: OSK\nPanel: 8"}]
    * 2,
    "triviaqa": QUESTIONS[:1],
    "nq": QUESTIONS[:2],
    "drop": QUESTIONS,
}  # of SWDE none
CLASSES = ["Date", "Reason", "Other location", "location"]
LONGBENCH_ROWS = [
    {"task": name, "id": n, "prompt": f"Read this. {'word ' * 40 * n}Answer:", "answers": ["a word", "words"]}
    | ({"all_classes": CLASSES} if name == "trec" else {})
    for name in (*TASKS, "passage_count")
    for n in range(2)
    if name != "qmsum"
]
NEWS_ROWS = [{"input": "", "context": f"Passage 1:\nNews {n}.", "answers": ["Old news."]} for n in range(3)]


def write_sets(folder: Path) -> None:
    for name, data in COMMONSENSE.items():
        text = WIKITEXT if name == "wikitext" else "".join(json.dumps(row) + "\n" for row in ROWS[name])
        write_text(folder / data.file, text)


def write_recall(folder: Path) -> None:
    for name, rows in RECALL_ROWS.items():
        write_rows(folder / RECALL[name].data.file, rows)


def write_longbench(folder: Path) -> None:
    """Of multi_news LongBench's own rows, of qmsum none, of the others prompts."""
    write_rows(folder / MINI, LONGBENCH_ROWS)
    write_rows(folder / "longbench_mini" / "multi_news_full.jsonl.gz", NEWS_ROWS)


def write_rows(file: Path, rows: list[dict]) -> None:
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode()))
