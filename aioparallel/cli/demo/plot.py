"""The picture of the demo: throughput, in flight and lag over one time axis, kills as vertical lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aioparallel.cli.demo.events import Event, Kind

__all__ = ["Point", "Sample", "Timeline", "draw", "in_flight", "read_samples", "throughput"]

BUCKET = 0.25  # seconds of completions counted together
# Okabe and Ito's palette: told apart with every kind of colour vision, and in grey.
BLUE, GREEN, VERMILION, GREY = "#0072B2", "#009E73", "#D55E00", "#595959"


class Point(NamedTuple):
    """A value at a time, in seconds from the first handler call."""

    at: float
    value: float


class Sample(NamedTuple):
    """The lag, in records, that one process of the consumer reported."""

    at: int
    run: int
    lag: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the picture shows. ``kills`` are in nanoseconds of CLOCK_MONOTONIC, as the events' times."""

    title: str
    events: Sequence[Event]
    samples: Sequence[Sample]
    kills: Sequence[int]
    plain_rate: float

    @property
    def start(self) -> int:
        """The first handler call; 0 when there was none."""
        return self.events[0].at if self.events else 0

    def seconds(self, at: int) -> float:
        """A clock time as seconds from the first handler call."""
        return (at - self.start) / 1e9


def read_samples(path: Path) -> list[Sample]:
    """The samples with a known lag that a consumer's processes wrote; none when the file is missing."""
    if not path.exists():
        return []
    rows = map(json.loads, path.read_text().splitlines())
    return [Sample(row["at"], row["run"], row["lag"]) for row in rows if row["lag"] is not None]


def throughput(timeline: Timeline) -> list[Point]:
    """Completions per second in buckets of a quarter of a second; each point stands at its bucket's start."""
    counts = Counter(
        int(timeline.seconds(event.at) / BUCKET) for event in timeline.events if event.kind == Kind.COMPLETED
    )
    last = max(counts, default=-1)
    return [Point(bucket * BUCKET, counts[bucket] / BUCKET) for bucket in range(last + 2)]


def in_flight(timeline: Timeline) -> list[Point]:
    """How many handlers ran, at each change. A kill takes it to 0 at once."""
    kills = iter(timeline.kills)
    points, running, run = [Point(0.0, 0)], 0, 0
    for event in timeline.events:
        if event.run != run:
            died = next(kills, event.at)
            points.append(Point(timeline.seconds(died), 0))
            running, run = 0, event.run
        running += 1 if event.kind == Kind.BEGAN else -1
        points.append(Point(timeline.seconds(event.at), running))
    return points


def lag_of_each_run(timeline: Timeline) -> Iterator[list[Point]]:
    """One line for each process of the consumer: between them nobody reports a lag."""
    for run in sorted({sample.run for sample in timeline.samples}):
        yield [Point(timeline.seconds(sample.at), sample.lag) for sample in timeline.samples if sample.run == run]


def draw(timeline: Timeline, path: Path) -> None:
    """Draw the picture into a PNG file."""
    figure = Figure(figsize=(10, 8), layout="constrained")
    rate, running, lag = figure.subplots(3, 1, sharex=True)
    figure.suptitle(timeline.title, fontsize=12)
    draw_throughput(rate, timeline)
    line(running, in_flight(timeline), GREEN, filled=True)
    running.set_ylabel("in flight\n(handlers)")
    for points in lag_of_each_run(timeline):
        line(lag, points, VERMILION, filled=False)
    lag.set_ylabel("lag\n(records)")
    lag.set_xlabel("seconds since the first handler call")
    for axes in (rate, running, lag):
        finish(axes, timeline)
    figure.savefig(path, dpi=120)


def draw_throughput(axes: Axes, timeline: Timeline) -> None:
    """The upper panel, with the plain loop's rate to compare."""
    line(axes, throughput(timeline), BLUE, filled=True)
    axes.axhline(timeline.plain_rate, color=GREY, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"plain loop: {timeline.plain_rate:,.0f}/s",
        (1.0, timeline.plain_rate),
        xycoords=("axes fraction", "data"),
        xytext=(-6, 5),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color="black",
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5},
    )
    axes.set_ylabel(f"throughput\n(records/s, by {BUCKET:g} s)")


def line(axes: Axes, points: Iterable[Point], colour: str, *, filled: bool) -> None:
    """A line of steps, with the area under it where ``filled``."""
    times, values = zip(*points, strict=True)
    axes.plot(times, values, color=colour, linewidth=1.4, drawstyle="steps-post")
    if filled:
        axes.fill_between(times, values, step="post", color=colour, alpha=0.2, linewidth=0)


def finish(axes: Axes, timeline: Timeline) -> None:
    """What all panels share: kills, grid, from zero, thousands with a comma."""
    for kill in timeline.kills:
        axes.axvline(timeline.seconds(kill), color="black", linestyle=":", linewidth=1.4)
        axes.annotate(
            "SIGKILL",
            (timeline.seconds(kill), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -10),
            textcoords="offset points",
            fontsize=8,
        )
    axes.grid(visible=True, alpha=0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
