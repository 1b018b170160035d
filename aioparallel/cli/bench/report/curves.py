"""Plots of lines: seconds over the count of keys, and the cost of a record over keys and over concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from aioparallel.cli.bench.model import Case, Spread
from aioparallel.cli.bench.report.look import (
    BLACK,
    EndLabel,
    count_axis,
    finish,
    label_ends,
    look_of,
    new_figure,
    save,
    shown_name,
)
from aioparallel.cli.bench.report.wording import number

__all__ = ["count_in_name", "draw_cost", "draw_keys"]

KEYS: Final = "e-keys-"
CONCURRENCY: Final = "e-concurrency-"


def count_in_name(case: Case, prefix: str) -> int | None:
    """The number at the end of a name such as ``b-key-20``; None when it is another kind of case."""
    rest = case.name.removeprefix(prefix)
    return int(rest) if case.name.startswith(prefix) and rest.isdecimal() else None


def sorted_by_count(cases: Sequence[Case], prefix: str) -> list[tuple[int, Case]]:
    """The cases of this kind with their numbers."""
    found = [(count, case) for case in cases if (count := count_in_name(case, prefix)) is not None]
    return sorted(found, key=lambda pair: pair[0])


def draw_keys(cases: Sequence[Case], title: str, path: Path) -> None:
    """Seconds over the count of keys, with the least possible as a line."""
    figure = new_figure(title, 9.5, 6)
    axes = figure.subplots()
    rows = sorted_by_count(cases, "b-key-")
    bounds = [(count, case.bound) for count, case in rows if case.bound]
    labels = []
    if bounds:
        axes.plot(*zip(*bounds, strict=True), color=BLACK, linewidth=1)
        labels.append(EndLabel(*bounds[-1], "bound", BLACK))
    for contestant in dict.fromkeys(entry.contestant for _, case in rows for entry in case.entries):
        points = [(count, entry.seconds) for count, case in rows if (entry := case.entry(contestant)) and entry.seconds]
        if points:
            whiskered(axes, points, contestant)
            labels.append(
                EndLabel(points[-1][0], points[-1][1].median, shown_name(contestant), look_of(contestant).colour)
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    count_axis(axes, [count for count, _ in rows])
    axes.set_xlabel("keys")
    axes.set_ylabel("seconds for all records")
    axes.margins(x=0.08)
    finish(axes, grid="both")
    figure.draw_without_rendering()
    label_ends(axes, labels)
    save(figure, path)


def whiskered(axes: Axes, points: Sequence[tuple[int, Spread]], contestant: str) -> None:
    """A line with a marker at each median, and whiskers from the lowest to the highest."""
    look = look_of(contestant)
    medians = [spread.median for _, spread in points]
    below = [spread.median - spread.lowest for _, spread in points]
    above = [spread.highest - spread.median for _, spread in points]
    axes.errorbar(
        [count for count, _ in points],
        medians,
        [below, above],
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        linewidth=1.8,
        markersize=7,
        capsize=3,
        elinewidth=1.2,
    )


def draw_cost(cases: Sequence[Case], title: str, path: Path) -> None:
    """CPU a record over keys and over concurrency; a flat line is a cost that does not grow."""
    panels = [
        (said, points)
        for prefix, said in ((KEYS, "keys (no-op handler)"), (CONCURRENCY, "concurrency (handlers of 100 ms)"))
        if (points := cost_points(cases, prefix))
    ]
    figure = new_figure(title, 5.5 * max(len(panels), 1) + 0.5, 4.6)
    for axes, (said, points) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        whiskered(axes, points, "ours")
        for count, spread in points:
            axes.annotate(
                number(spread.median),
                (count, spread.highest),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
            )
        count_axis(axes, [count for count, _ in points])
        axes.set_ylim(bottom=0, top=1.25 * max(spread.highest for _, spread in points))
        axes.margins(x=0.1)
        axes.set_xlabel(said)
        axes.set_ylabel("CPU a record, µs")
        finish(axes, grid="y")
    save(figure, path)


def cost_points(cases: Sequence[Case], prefix: str) -> list[tuple[int, Spread]]:
    """CPU a record of ours in microseconds."""
    points = []
    for count, case in sorted_by_count(cases, prefix):
        entry = case.entry("ours")
        if entry is not None and (cost := entry.cpu_per_record) is not None:
            points.append((count, Spread(*(value * 1e6 for value in (cost.median, cost.lowest, cost.highest)))))
    return points
