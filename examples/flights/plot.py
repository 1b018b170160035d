"""The picture: throughput, records in flight and lag over time, kills as vertical lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict

import altair as alt

from aioparallel.testing.event_log import Event, EventKind

__all__ = ["Moment", "draw", "moments"]

WIDTH = 800  # of a panel
STEP = 250_000_000  # nanoseconds between two points of a line
# The palette of Okabe and Ito: distinguishable with colour blindness, and in grey.
BLUE, GREEN, VERMILION, GREY = "#0072B2", "#009E73", "#D55E00", "#595959"


class Moment(TypedDict):
    """The state at one time."""

    at: float
    """Seconds since the first handler call."""
    rate: float
    """Records completed per second until the next moment."""
    flying: int
    """Running handlers."""
    lag: int
    """Records that are not completed."""


def moments(runs: Sequence[Sequence[Event]], kills: Sequence[int], records: int) -> list[Moment]:
    """The state at each quarter of a second. ``kills``: the ends of all runs but the last, by the events' clock."""
    start = runs[0][0].at
    rate, flying, lag = Counter[int](), {-1: 0}, {-1: records}
    done: set[tuple[int, int]] = set()
    for events, kill in zip_longest(runs, kills):
        running = step = 0
        for event in events:
            step = (event.at - start) // STEP
            running += 1 if event.kind is EventKind.BEGAN else -1
            if event.kind is EventKind.ENDED:
                rate[step] += 1
                done.add((event.partition, event.offset))
            flying[step], lag[step] = running, records - len(done)
        flying[step if kill is None else (kill - start) // STEP] = 0
    for step in range(max(flying) + 1):
        flying.setdefault(step, flying[step - 1])
        lag.setdefault(step, lag[step - 1])
    return [
        Moment(at=step * STEP / 1e9, rate=rate[step] * 1e9 / STEP, flying=flying[step], lag=lag[step])
        for step in range(max(flying) + 1)
    ]


def draw(title: str, found: Sequence[Moment], kills: Sequence[float], plain_rate: float, path: Path) -> None:
    """Draw a PNG file. ``kills``: in seconds since the first handler call."""
    rate = panel(found, "rate", "records/s", BLUE)
    flying = panel(found, "flying", "in flight (handlers)", GREEN)
    lag = panel(found, "lag", "lag (records)", VERMILION)
    plain = alt.Chart({"values": [{"rate": plain_rate, "text": f"plain loop: {plain_rate:,.0f}/s"}]})
    dashed = plain.mark_rule(color=GREY, strokeDash=[6, 3]).encode(y="rate:Q")
    text = plain.mark_text(align="right", x=WIDTH - 4, dy=-8).encode(y="rate:Q", text="text:N")
    killed = alt.Chart({"values": [{"at": at} for at in kills]}).encode(x="at:Q")
    marks = killed.mark_rule(strokeDash=[2, 2]), killed.mark_text(text="SIGKILL", align="left", dx=3, y=8)
    panels = [alt.layer(*layers, *marks, width=WIDTH, height=170) for layers in ((*rate, dashed, text), flying, lag)]
    alt.vconcat(*panels, title=title).configure_title(anchor="middle").save(path, scale_factor=1.5)


def panel(found: Sequence[Moment], field: str, title: str, colour: str) -> tuple[alt.Chart, alt.Chart]:
    """A stepped line over time, and the area below it."""
    last = max((moment["at"] for moment in found), default=0.0)
    x = alt.X("at:Q", title="seconds since the first handler call", scale=alt.Scale(domain=[0, last], nice=False))
    chart = alt.Chart({"values": list(found)}).encode(x=x, y=alt.Y(f"{field}:Q", title=title))
    area = chart.mark_area(interpolate="step-after", color=colour, opacity=0.2)
    return area, chart.mark_line(interpolate="step-after", color=colour, strokeWidth=1.4)
