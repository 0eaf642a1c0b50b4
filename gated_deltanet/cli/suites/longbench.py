"""`gdn eval --suite longbench`: table 5."""

from pathlib import Path
from time import perf_counter
from typing import Any

from gated_deltanet.cli.eval import Eval

from .prompted import open_speaker, write_on
from .report import Report, check_any


def run(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.eval import longbench, longbench_sets
    from gated_deltanet.eval.columns import summary
    from gated_deltanet.eval.cutting import middle_out
    from gated_deltanet.eval.longbench_sets import TASKS

    speaker = open_speaker(options, document, longbench_sets.LENGTH)
    from gated_deltanet.eval.speaker import recipe

    def evaluate(name: str) -> dict[str, Any]:
        start, task = perf_counter(), recipe(f"longbench_{name}")
        room = speaker.room(task.settings["max_gen_toks"])
        source, rows = read(name, options.data_dir, task)
        used = rows[: options.limit]
        whole = [longbench_sets.prompt(row, task.fill) for row in used]
        prompts = [middle_out(prompt, room, speaker.codec) for prompt in whole]
        said = write_on(options, speaker, name, prompts, task.settings)
        scores = [longbench_sets.score(name, text, row) for text, row in zip(said, used, strict=True)]
        return {
            "source": source,
            "rows": len(used),
            "rows_held": len(rows),
            "cut": sum(cut != prompt for cut, prompt in zip(prompts, whole, strict=True)),
            "as_in_the_paper": len(used) == TASKS[name].rows,
            "seconds": perf_counter() - start,
            "task_version": task.version,
            **summary(TASKS[name].metric, scores),
        }

    document |= longbench.run(evaluate)
    check_any(document["sets"], document)
    name = Path(options.checkpoint).name
    return Report(longbench.table(document, name), longbench.short(document, name), longbench.notes(document))


def read(name: str, folder: Path | None, task: Any) -> tuple[str, list[dict[str, Any]]]:
    """Where the rows are from, and the rows."""
    from gated_deltanet.eval import longbench_sets
    from gated_deltanet.eval.speaker import hub_rows

    if folder:
        file, rows = longbench_sets.local_rows(name, folder)
        return str(folder / file), rows
    rows = hub_rows(task.dataset, task.name, task.split, lambda row: longbench_sets.checked(name, row))
    return f"hub: {task.dataset} {task.name}", rows
