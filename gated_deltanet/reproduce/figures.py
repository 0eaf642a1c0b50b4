"""A picture for each target: every system's number with its interval, or a curve where the number has a length."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gated_deltanet.bench.figures import style_of
from gated_deltanet.files import write

from .numbers import Number, per_token
from .verdicts import LOOKS, interval

Found: TypeAlias = Sequence[Mapping[str, Any]]  # what was measured, of each system and seed
Curve: TypeAlias = Callable[[Mapping[str, Any]], Mapping[float, float]]  # of one cell's measures


def draw(target: str, found: Found, asked: Sequence[tuple[Number, Sequence[str]]], file: Path) -> None:
    """A PNG. asked: the target's numbers, each with its systems in their order."""
    panels = PANELS[target](found) if target in PANELS else []
    named = list(dict.fromkeys(name for _, names in asked for name in names))
    run = {cell["system"] for cell in found}
    groups = [(number, title, some) for number, names in asked for title, some in by_task(names).items()]
    dots = [each for each in groups if run.intersection(each[2])]
    figure = Figure(figsize=figure_size(len(panels) or len(dots), bool(panels)), layout="constrained")
    axes = grid(figure, len(panels) or len(dots))
    if panels:
        for axis, (title, label, curve) in zip(axes, panels, strict=True):
            draw_curves(axis, found, named, curve)
            axis.set(title=title, xlabel=label)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        handles = {str(line.get_label()): line for axis in axes for line in axis.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    else:
        for axis, (number, title, names) in zip(axes, dots, strict=True):
            draw_dots(axis, found, names, number)
            axis.set_title(f"{title}{number.title} ({'more' if number.better > 0 else 'less'} is better)", fontsize=9)
    write(file, lambda unfinished: figure.savefig(unfinished, format="png", dpi=120))


def figure_size(panels: int, curves: bool) -> tuple[float, float]:
    rows, columns = layout(panels)
    return 1 + 4.2 * columns, (3.4 * rows + 0.8) if curves else 2.6 * rows


def layout(panels: int) -> tuple[int, int]:
    return (panels + 2) // 3, min(panels, 3)


def grid(figure: Figure, panels: int) -> list[Axes]:
    rows, columns = layout(panels)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]
    for axis in axes:
        axis.grid(alpha=0.4)
    return axes


def by_task(named: Sequence[str]) -> dict[str, list[str]]:
    """Systems that are compared with each other, by what to call them: "mqar; 1024: " has "mqar: gdn; 1024"."""
    groups: dict[str, list[str]] = {}
    for name in named:
        task, _, rest = name.rpartition(": ")
        size = f";{rest.split(';')[1]}" if ";" in rest else ""
        groups.setdefault(f"{task}{size}: " if task else "", []).append(name)
    return groups


def draw_dots(axis: Axes, found: Found, named: Sequence[str], number: Number) -> None:
    """The best on top: every seed, the mean, and from the first look on the interval over seeds."""
    values = {name: [number.of(cell["measures"]) for cell in found if cell["system"] == name] for name in named}
    middle = {name: interval(each) for name, each in values.items() if each}
    best_last = sorted(middle, key=lambda name: number.better * middle[name][0])
    for y, name in enumerate(best_last):
        mean, half = middle[name]
        colour, mark, _ = style_of(plain(name))
        axis.plot(values[name], [y] * len(values[name]), ".", color=colour or "black", alpha=0.5)
        shown = half if len(values[name]) >= LOOKS[0] else None
        axis.errorbar(mean, y, xerr=shown, color=colour or "black", marker=mark, capsize=3)
    axis.set_yticks(range(len(best_last)), [plain(name) for name in best_last], fontsize=8)


def draw_curves(axis: Axes, found: Found, named: Sequence[str], curve: Curve) -> None:
    """The mean over seeds, and the range of it."""
    for name in named:
        curves = [curve(cell["measures"]) for cell in found if cell["system"] == name]
        points = [x for x in curves[0] if all(x in each for each in curves)] if curves else []
        if not points:
            continue
        values = [[each[x] for each in curves] for x in points]
        colour, mark, label = style_of(plain(name))
        means = [sum(each) / len(each) for each in values]
        (line,) = axis.plot(points, means, color=colour, marker=mark, label=label, markersize=4)
        axis.fill_between(
            points, [min(v) for v in values], [max(v) for v in values], color=line.get_color(), alpha=0.15
        )


def plain(name: str) -> str:
    """A system without its task and the size of its state."""
    return name.split(": ")[-1].split(";")[0]


def needle_panels(found: Found) -> list[tuple[str, str, Curve]]:
    def curve(task: str, what: str) -> Curve:
        def of(m: Mapping[str, Any]) -> dict[float, float]:
            scores = {float(at): each for at, each in m.get("needles", {}).get(task, {}).items()}
            if what == "loss":
                return {at: each["loss"] for at, each in scores.items()}
            return {at: 100 * each["right"] / each["asked"] for at, each in scores.items()}

        return of

    tasks, label = [f"S-NIAH-{i}" for i in (1, 2, 3)], "times the trained length"
    right = [(f"{task}: percent right", label, curve(task, "right")) for task in tasks]
    return right + [(f"{task}: loss of the value (nats)", label, curve(task, "loss")) for task in tasks]


def position_panels(found: Found) -> list[tuple[str, str, Curve]]:
    def curve(corpus: str) -> Curve:
        def of(m: Mapping[str, Any]) -> dict[float, float]:
            stretches = m.get("positions", {}).get(corpus, [])
            return {i + 1: per_token([each]) for i, each in enumerate(stretches) if each[1]}

        return of

    corpora = dict.fromkeys(name for cell in found for name in cell["measures"].get("positions", ()))
    return [(f"{name}: loss (nats)", "times the trained length", curve(name)) for name in corpora]


def speed_panels(found: Found) -> list[tuple[str, str, Curve]]:
    def of(m: Mapping[str, Any]) -> dict[float, float]:
        return {int(length) / 1024: each for length, each in m.get("tokens_per_second", {}).items()}

    return [("tokens per second", "length of a row (thousand tokens)", of)]


PANELS: Mapping[str, Callable[[Found], list[tuple[str, str, Curve]]]] = {
    "table2": needle_panels,
    "fig2": position_panels,
    "fig3": speed_panels,
}
