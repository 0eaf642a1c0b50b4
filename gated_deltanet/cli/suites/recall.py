"""`gdn eval --suite recall`: table 4."""

from pathlib import Path
from time import perf_counter
from typing import Any

from gated_deltanet.cli.eval import Eval

from .prompted import open_speaker, write_on
from .report import Report, check_any


def run(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.eval import recall, recall_sets
    from gated_deltanet.eval.columns import summary
    from gated_deltanet.eval.recall_sets import SETTINGS, Recall, contains

    speaker = open_speaker(options, document, recall_sets.LENGTH)

    def evaluate(name: str, data: Recall) -> dict[str, Any]:
        start, room = perf_counter(), speaker.room(SETTINGS["max_gen_toks"])
        source, rows = read(data, options.data_dir)
        answers = [row["answers"] for row in rows[: options.limit]]
        prompts = [recall_sets.prompt(row, room, speaker.codec) for row in rows[: options.limit]]
        said = write_on(options, speaker, name, prompts, SETTINGS)
        differs = data.differs if options.data_dir else ""
        return {
            "source": source,
            "differs": differs,
            "rows": len(prompts),
            "rows_held": len(rows),
            "rows_with_the_answer_in_the_prompt": sum(map(contains, prompts, answers)),
            "as_in_the_paper": not differs and len(prompts) == len(rows),
            "seconds": perf_counter() - start,
            **summary("contains", list(map(contains, said, answers))),
        }

    document |= recall.run(evaluate)
    check_any(document["sets"], document)
    name = Path(options.checkpoint).name
    return Report(recall.table(document, name), recall.short(document, name), recall.notes(document))


def read(data: Any, folder: Path | None) -> tuple[str, list[dict[str, Any]]]:
    """Where the rows are from, and the rows."""
    from gated_deltanet.eval.sets import read_rows
    from gated_deltanet.eval.speaker import hub_rows

    if folder:
        return str(folder / data.data.file), read_rows(data.data, folder)
    return f"hub: {data.hub}", hub_rows(data.hub, None, data.data.split, data.convert)
