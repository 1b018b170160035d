"""The plot of latency: points, because bars on a logarithmic axis begin nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from aioparallel.cli.bench.model import Case
from aioparallel.cli.bench.report.look import Look, finish, look_of, new_figure, save
from aioparallel.cli.bench.report.wording import number

__all__ = ["draw_latency"]

PERCENTILES: Final = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}


class Way(NamedTuple):
    """From where to where, as figures are named, in words, and how it is drawn."""

    figure: str
    words: str
    look: Look


WAYS: Final = (
    Way("arrival_to_handler", "arrival in the client to handler", look_of("ours")),
    Way("produce_to_handler", "produce to handler", look_of("java")),
)


def draw_latency(cases: Sequence[Case], title: str, path: Path) -> None:
    """A panel for each case, a row for each percentile."""
    figure = new_figure(title, 9.5, 1.3 + 2.0 * len(cases))
    panels = figure.subplots(len(cases), 1, squeeze=False, sharex=True)[:, 0]
    for axes, case in zip(panels, cases, strict=True):
        for way in WAYS:
            points(axes, case, way)
        axes.set_title(case.title, fontsize=10, loc="left")
        axes.set_yticks(range(len(PERCENTILES)), list(PERCENTILES.values()))
        axes.set_ylim(len(PERCENTILES) - 0.5, -0.5)
        finish(axes, grid="both")
    last = panels[-1]
    last.set_xscale("log")
    last.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    last.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    last.xaxis.set_minor_formatter(NullFormatter())
    last.margins(x=0.1)
    last.set_xlabel("milliseconds (logarithmic)")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, path)


def points(axes: Axes, case: Case, way: Way) -> None:
    """One way's percentiles, each with its value."""
    found = [
        (case.figures[name], place)
        for place, percentile in enumerate(PERCENTILES)
        if (name := f"{way.figure}_{percentile}_ms") in case.figures
    ]
    axes.plot(
        [value for value, _ in found],
        [place for _, place in found],
        color=way.look.colour,
        marker=way.look.marker,
        linestyle="",
        markersize=8,
        label=way.words,
    )
    for at in found:
        axes.annotate(number(at[0]), at, xytext=(9, 0), textcoords="offset points", va="center", fontsize=9)
