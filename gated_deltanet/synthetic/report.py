"""The suite's numbers as a table, with what a reader must know of them."""

from typing import Any

from gated_deltanet.quantity import show_count


def table(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """One line a task and model."""
    title, columns, lines = short(document)
    results = [result for task in document["tasks"].values() for result in task["models"].values()]
    costs = [[show_count(x["parameters"]), state(x), str(x["steps"]), f"{x['seconds']:.0f}"] for x in results]
    lines = [line + cost for line, cost in zip(lines, costs, strict=True)]
    return title, [*columns, "parameters", "state", "steps", "seconds"], lines


def short(document: dict[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """For a terminal: without what it cost."""
    lines = []
    for task in document["tasks"].values():
        name = f"{task['title']} (chance {task['chance']:.1f})"
        for i, result in enumerate(task["models"].values()):
            lines.append([name if i == 0 else "", result["model"], f"{result['accuracy']:.1f}", by_level(result)])
    return "Synthetic tasks: percent right", ["task", "model", "accuracy", "by level"], lines


def by_level(result: dict[str, Any]) -> str:
    return ", ".join(f"{point['level']}: {point['accuracy']:.1f}" for point in result["points"])


def state(result: dict[str, Any]) -> str:
    """Of one sequence, and what each token adds to it."""
    parts = [f"{result['state_bytes'] / 1024:.1f} KB"] if result["state_bytes"] else []
    parts += [f"{result['kv_bytes_per_token']} B a token"] if result["kv_bytes_per_token"] else []
    return " + ".join(parts)


def notes(document: dict[str, Any]) -> list[str]:
    levels = (f"{task['title']}: {task['level']}, trained on {spelt(task)}" for task in document["tasks"].values())
    return [
        *(f"Left out: {name}: {reason}." for name, reason in document["left_out"].items()),
        f"Levels: {'; '.join(levels)}.",
        "Parity, S3 and S5 are Gated DeltaNet's: one layer, no decay, no convolution; a row's second half is scored.",
        "A low score tells that a model did not learn it in these steps at this rate, not that it never could.",
        f"One seed ({document['seed']}), {document['seconds'] / 60:.1f} minutes; who has solved a task stops.",
    ]


def spelt(task: dict[str, Any]) -> str:
    return ", ".join(map(str, task["trained"]))
