"""`gdn eval --suite extrapolation`: Fig. 2."""

from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from gated_deltanet.cli.eval import Eval

from .report import Report, answers, check_any, open_reader


def run(options: Eval, document: dict[str, Any]) -> Report:
    from gated_deltanet.eval import corpora, extrapolation
    from gated_deltanet.eval.attempts import attempts

    reader = open_reader(options)
    document["ends"] = buckets(options.max_length)
    document["refused"] = refused(document["ends"], reader.longest)
    ends = [end for end in document["ends"] if end not in document["refused"]]

    def losses(some: list[str]) -> list[list[tuple[float, int]]]:
        rows = [[reader.begin, *reader.encode(text)] for text in some]
        return [extrapolation.by_bucket(reader.losses(row[: ends[-1] + 1]), ends) for row in rows]

    def evaluate(name: str) -> dict[str, Any]:
        start, found = perf_counter(), corpora.texts(name, options.data_dir, options.limit)
        points = extrapolation.curve(answers(options, name, found, losses, 1, ends), ends)
        source = str(options.data_dir / corpora.CORPORA[name].files) if options.data_dir else "stdlib"
        own = options.data_dir is not None and corpora.CORPORA[name].own
        return {"points": points, "source": source, "own": own, "seconds": perf_counter() - start}

    wanted = list(corpora.CORPORA) if options.data_dir else [corpora.LIBRARY]
    document["corpora"], document["left_out"] = attempts(wanted, evaluate)
    check_any(document["corpora"], document)
    name = Path(options.checkpoint).name
    if options.out and find_spec("matplotlib"):
        from gated_deltanet.eval.extrapolation_figure import draw

        draw(document, name, options.out / "extrapolation.png")
    table, screen = extrapolation.table(document, name), extrapolation.short(document, name)
    return Report(table, screen, extrapolation.notes(document))


def buckets(most: int | None) -> list[int]:
    """Fig. 2's: 4K, then steps of 2K to 20K or to --max-length."""
    most = most or 20480
    return [*range(4096, most, 2048), most]


def refused(ends: list[int], longest: int | None) -> dict[int, str]:
    """Lengths that the model cannot read, and why; an error if that is all of them."""
    reason = f"the model has positions for {longest} tokens"
    found = {end: reason for end in ends if longest is not None and end > longest}
    if len(found) == len(ends):
        raise ValueError(f"nothing could be evaluated: {reason}, expected at least {ends[0]}: --max-length {longest}")
    return found
