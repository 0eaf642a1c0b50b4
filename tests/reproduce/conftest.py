import pytest
from tiny_sets import LONGBENCH_ROWS, write_longbench, write_recall, write_rows, write_text
from toy_scale import STORY, TOY

from gated_deltanet.eval.longbench import MINI
from gated_deltanet.eval.recall import SETS
from gated_deltanet.reproduce import cells
from gated_deltanet.reproduce.cells.text import TextCell

WORDS = ("amber", "brave", "calm", "early", "quiet"), ("anchor", "bridge", "candle", "forest", "river")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Everything that a cell reads, tiny."""
    folder = tmp_path_factory.mktemp("data")
    write_recall(folder)
    asked = [{"context": f"{STORY}Ann has {n} cats.", "question": "Who?", "answers": [f"{n} cats"]} for n in range(3)]
    write_rows(folder / SETS["squad"].data.file, asked)
    write_longbench(folder)
    for name in ("train", "valid"):
        write_rows(folder / f"wikipedia_en/{name}.jsonl.gz", [{"text": f"Article {i}. {STORY}"} for i in range(99)])
    for name in ("train", "valid", "test"):
        write_text(folder / f"novels_en/{name}/a.txt.gz", STORY * (400 if name == "test" else 90))
    prompts = [
        f"Story: {name}{STORY * 40}\n\nNow, answer the question based on the story: who?" for name in ("", "2. ")
    ]
    rows = zip(LONGBENCH_ROWS, prompts, strict=False)
    write_rows(folder / MINI, [*({**row, "prompt": prompt} for row, prompt in rows), *LONGBENCH_ROWS[2:]])
    for name in ("govreport/a", "qasper/papers", "code_python_stdlib/a"):
        write_rows(folder / f"{name}.jsonl.gz", [{"text": STORY * 40}])
    turns = [{"speaker": "Ann", "content": STORY * 40}]
    write_rows(folder / "qmsum/test.jsonl.gz", [{"meeting_transcripts": turns}])
    (folder / "paul_graham_essays").mkdir()
    (folder / "paul_graham_essays/a.txt").write_text(STORY * 20)
    (folder / "wordlists").mkdir()
    for name, words in zip(("adjectivelist", "nounlist"), WORDS, strict=True):
        (folder / f"wordlists/{name}.txt").write_text("\n".join(words))
    return folder


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return cells.run(TextCell("gdn", 3), TOY, data, folder / "work", folder / "cells"), folder
