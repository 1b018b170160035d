"""Plots of bars: throughput and memory side by side, and the patterns of offset maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aioparallel.cli.bench.measures import stopped, warm_memory
from aioparallel.cli.bench.model import Case, Spread
from aioparallel.cli.bench.report.look import BLACK, Look, finish, look_of, new_figure, save, shown_name
from aioparallel.cli.bench.report.wording import megabytes, number

__all__ = ["draw_maps", "draw_throughput", "draw_throughput_and_memory"]

FIRST: Final = look_of("ours")
SECOND: Final = look_of("getmany")


def draw_throughput(cases: Sequence[Case], title: str, path: Path) -> None:
    """A panel for each case, a bar for each contestant, the fastest on top."""
    draw_panels([rate_panel(case) for case in cases], title, path)


def draw_throughput_and_memory(cases: Sequence[Case], title: str, path: Path) -> None:
    """The same, and what memory that took."""
    draw_panels([panel(case) for case in cases for panel in (rate_panel, memory_panel)], title, path)


class Panel(NamedTuple):
    """Bars of one kind, in their order from the top: contestant, value, what is said behind it."""

    title: str
    unit: str
    bars: list[tuple[str, Spread, str]]


def rate_panel(case: Case) -> Panel:
    """Records a second of those contestants that have any."""
    rates = [(entry, entry.rate) for entry in case.entries if entry.rate is not None]
    rates.sort(key=lambda found: found[1].median, reverse=True)
    bars = [
        (entry.contestant, rate, number(rate.median) + (" (stopped at its limit)" if stopped(entry) else ""))
        for entry, rate in rates
    ]
    return Panel(case.title, "records a second: median of the warm runs, whiskers from the lowest to the highest", bars)


def memory_panel(case: Case) -> Panel:
    """Their peak memory, the smallest on top."""
    peaks = sorted((warm_memory(entry), entry.contestant) for entry in case.entries if entry.warm)
    bars = [(name, Spread.of([peak / 1e6]), f"{megabytes(peak)} MB") for peak, name in peaks]
    return Panel("", "peak memory of the process, MB", bars)


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """One below the other; the unit is said once where neighbours share it."""
    heights = [len(panel.bars) + 1.4 for panel in panels]
    figure = new_figure(title, 9.5, 0.6 + 0.42 * sum(heights))
    places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for at, (axes, panel) in enumerate(zip(places, panels, strict=True)):
        draw_panel(axes, panel)
        if panel.unit not in [other.unit for other in panels[at + 1 :]]:
            axes.set_xlabel(panel.unit)
    save(figure, path)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """One."""
    for place, (contestant, value, said) in enumerate(panel.bars):
        whiskers = [[value.median - value.lowest], [value.highest - value.median]]
        bar(axes, place, value.median, look_of(contestant), whiskers=whiskers if any(map(any, whiskers)) else None)
        say(axes, place, value.highest, said, bold=contestant == "ours")
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_yticks(range(len(panel.bars)), [shown_name(contestant) for contestant, _, _ in panel.bars])
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    finish(axes, grid="x")


def bar(
    axes: Axes, place: float, value: float, look: Look, *, whiskers: Sequence[Sequence[float]] | None = None, **how: Any
) -> None:
    """A horizontal bar with the contestant's hatch."""
    axes.barh(
        place,
        value,
        how.pop("height", 0.7),
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        linewidth=0,
        xerr=whiskers,
        error_kw={"ecolor": BLACK, "capsize": 3, "elinewidth": 1.2},
        **how,
    )


def say(axes: Axes, place: float, end: float, text: str, *, bold: bool = False) -> None:
    """Text behind the end of a horizontal bar."""
    axes.annotate(
        text,
        (end, place),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        fontweight="bold" if bold else "normal",
    )


def draw_maps(patterns: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Encode and decode times of each pattern of incomplete offsets, and how large its map is."""
    figure = new_figure(title, 11, 1.2 + 0.62 * len(patterns))
    times, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = [(str(row["pattern"]), row["encode_ms"], row["decode_ms"]) for row in patterns]
    pairs(times, rows, ("encode", "decode"), " ms")
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    times.set_xlabel("milliseconds")
    times.margins(x=0.16)
    for place, row in enumerate(patterns):
        bar(sizes, place, row["characters"], look_of("ceiling"))
        say(sizes, place, row["characters"], number(row["characters"]))
    sizes.set_xlabel("size, characters")
    sizes.xaxis.set_major_locator(MaxNLocator(4))
    sizes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    sizes.margins(x=0.22)
    finish(sizes, grid="x")
    save(figure, path)


def pairs(axes: Axes, rows: Sequence[tuple[str, float, float]], names: tuple[str, str], unit: str) -> None:
    """Two bars for each row, told apart by their hatches."""
    for place, (_, *values) in enumerate(rows):
        for which, (value, look, name) in enumerate(zip(values, (FIRST, SECOND), names, strict=True)):
            at = place + 0.4 * which - 0.2
            bar(axes, at, value, look, height=0.36, label=name if place == 0 else None)
            say(axes, at, value, f"{number(value)}{unit}")
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    finish(axes, grid="x")
