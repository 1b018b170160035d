"""Draws plots of results with Altair; vl-convert writes the files. A plot's name begins with the letter of its group.

Nothing depends on colour alone: bars have names, and lines differ in their dashes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import altair as alt

from benchmarks.cases import GROUPS
from benchmarks.measures import OURS, Result

__all__ = ["draw"]

Row = Mapping[str, Any]

# The palette of Okabe and Ito: distinguishable with colour blindness, and in grey.
COLOURS: Final = {"aioparallel": "#0072B2", "java": "#D55E00", "java-256m": "#D55E00", "ceiling": "#8C8C8C"}
OTHERS: Final = "#009E73"
PERCENTILES: Final = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}


def draw(results: Sequence[Result], folder: Path) -> None:
    """Draw the plots for these results into a folder; old plots without results are removed."""
    for name, (rows_of, form) in PLOTS.items():
        rows = [row for result in results if result.group == name[0] for row in rows_of(result)]
        if rows:
            chart = form(rows).properties(title=f"({name[0]}) {GROUPS[name[0]]}")
            chart.save(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def warm_rows(result: Result) -> Iterator[Row]:
    """A row for each contestant with warm runs that count."""
    for entry in result.entries:
        for name, unit in (("rate", 1.0), ("seconds", 1.0), ("cpu_per_record", 1e6)):
            if (spread := entry.spread(name)) is not None:  # type: ignore[arg-type]
                shown = "aioparallel" if entry.contestant == OURS else entry.contestant
                values = {"value": spread.median, "lowest": spread.lowest, "highest": spread.highest}
                numbers = {key: value * unit for key, value in values.items()}
                yield {"case": result.name, "contestant": shown, "measure": name, **numbers}


def rates(result: Result) -> Iterator[Row]:
    """Records per second."""
    return (row for row in warm_rows(result) if row["measure"] == "rate")


def counted(prefix: str, measure: str, unit: str) -> Callable[[Result], Iterator[Row]]:
    """Rows of the cases whose names are a prefix and a number."""

    def rows_of(result: Result) -> Iterator[Row]:
        count = result.name.removeprefix(prefix)
        if not (result.name.startswith(prefix) and count.isdecimal()):
            return
        for row in warm_rows(result):
            if row["measure"] == measure:
                yield {**row, "count": int(count), "of": unit}
        if measure == "seconds" and result.bound:
            yield {"contestant": "bound", "value": result.bound, "count": int(count), "of": unit}

    return rows_of


def costs(result: Result) -> Iterator[Row]:
    """CPU time per record by keys and by concurrency."""
    yield from counted("e-keys-", "cpu_per_record", "keys (no-op handler)")(result)
    yield from counted("e-concurrency-", "cpu_per_record", "concurrency (handlers of 100 ms)")(result)


def latencies(result: Result) -> Iterator[Row]:
    """A row for each percentile of each latency."""
    for way in ("arrival_to_handler", "produce_to_handler"):
        for percentile, shown in PERCENTILES.items():
            if (value := result.figures.get(f"{way}_{percentile}_ms")) is not None:
                yield {"case": result.title, "way": way.replace("_", " "), "percentile": shown, "value": value}


def patterns(result: Result) -> Iterator[Row]:
    """Encode and decode times of each pattern."""
    for row in result.figures.get("patterns", ()):
        for what in ("encode", "decode"):
            if f"{what}_ms" in row:
                yield {"pattern": row["pattern"], "what": what, "value": row[f"{what}_ms"]}


def chart_of(rows: Sequence[Row]) -> alt.Chart:
    """A chart of these rows without marks."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def bars(rows: Sequence[Row]) -> Any:
    """A panel for each case, a bar for each contestant, the fastest on top; whiskers show the range."""
    names = sorted({row["contestant"] for row in rows})
    colours = [COLOURS.get(name, OTHERS) for name in names]
    order = [row["contestant"] for row in sorted(rows, key=lambda row: row["value"], reverse=True)]
    base = chart_of(rows).encode(y=alt.Y("contestant:N", sort=list(dict.fromkeys(order)), title=None))
    length = alt.X("value:Q", title="records a second: median of the warm runs, lowest to highest")
    bar = base.mark_bar().encode(
        x=length, color=alt.Color("contestant:N", legend=None, scale=alt.Scale(domain=names, range=colours))
    )
    whisker = base.mark_rule().encode(x="lowest:Q", x2="highest:Q")
    text = base.mark_text(align="left", dx=8).encode(x="highest:Q", text=alt.Text("value:Q", format=",.0f"))
    return (
        (bar + whisker + text)
        .properties(width=560)
        .facet(row=alt.Row("case:N", title=None))
        .resolve_scale(y="independent")
    )


def lines(title: str, scale: str) -> Callable[[Sequence[Row]], Any]:
    """A line for each contestant with a point at each count; a panel for each kind of count."""

    def chart(rows: Sequence[Row]) -> Any:
        base = chart_of(rows).encode(
            x=alt.X("count:Q", scale=alt.Scale(type="log", nice=False), title=None),
            y=alt.Y("value:Q", scale=alt.Scale(type=scale), title=title),  # type: ignore[arg-type]
            color=alt.Color("contestant:N", title=None),
            strokeDash=alt.StrokeDash("contestant:N", title=None),
        )
        lines = base.mark_line(point=alt.OverlayMarkDef(size=70))
        panels = lines.properties(width=380).facet(column=alt.Column("of:N", title=None))
        return panels.resolve_scale(x="independent", y="independent")

    return chart


def points(rows: Sequence[Row]) -> Any:
    """Percentiles as points, because bars have no origin on a logarithmic axis."""
    dots = chart_of(rows).mark_point(filled=True, size=90).encode(
        x=alt.X("value:Q", scale=alt.Scale(type="log"), title="milliseconds (logarithmic)"),
        y=alt.Y("percentile:N", sort=list(PERCENTILES.values()), title=None),
        color=alt.Color("way:N", title=None),
        shape=alt.Shape("way:N", title=None),
    )  # fmt: skip
    return dots.properties(width=560).facet(row=alt.Row("case:N", title=None))


def pairs(rows: Sequence[Row]) -> Any:
    """Two bars for each pattern."""
    return chart_of(rows).mark_bar().encode(
        x=alt.X("value:Q", title="milliseconds"),
        y=alt.Y("what:N", title=None),
        row=alt.Row("pattern:N", title=None, sort=list(dict.fromkeys(row["pattern"] for row in rows))),
        color=alt.Color("what:N", legend=None),
    )  # fmt: skip


PLOTS: Final[dict[str, tuple[Callable[[Result], Iterator[Row]], Callable[[Sequence[Row]], Any]]]] = {
    "a-throughput.svg": (rates, bars),
    "b-keys.svg": (counted("b-key-", "seconds", "keys"), lines("seconds for all records", "log")),
    "c-throughput.svg": (rates, bars),
    "d-throughput.svg": (rates, bars),
    "e-cost.svg": (costs, lines("CPU a record, µs", "linear")),
    "f-latency.svg": (latencies, points),
    "g-maps.svg": (patterns, pairs),
    "j-throughput.svg": (rates, bars),
    "k-throughput.svg": (rates, bars),
}
