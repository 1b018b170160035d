"""The picture: mean departure delay of each carrier by weather."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import altair as alt
import pandas as pd

__all__ = ["draw"]

# The colours of Okabe and Ito, distinguishable with colour blindness, and different shapes.
_LOOKS: Final = {
    "fair": ("#0072B2", "circle"),
    "windy": ("#009E73", "square"),
    "rain or snow": ("#E69F00", "triangle-up"),
    "poor visibility": ("#D55E00", "diamond"),
}
_FEW: Final = 25
"""Means of fewer flights are left out."""


def draw(delays: pd.DataFrame, cancelled: pd.Series, path: Path) -> None:
    """Draw a PNG file. ``delays``: Spark's result; ``cancelled``: flights by carrier."""
    carriers = delays.groupby("carrier").agg({"airline": "first", "flights": "sum", "dep_delay": "sum"})
    carriers["mean"] = carriers["dep_delay"] / carriers["flights"]
    carriers["name"] = carriers["airline"] + " (" + carriers.index + ")"
    carriers["cancelled"] = cancelled.reindex(carriers.index, fill_value=0)
    carriers["share"] = carriers["cancelled"] / (carriers["flights"] + carriers["cancelled"])
    carriers = carriers.sort_values("mean", ascending=False)
    names = alt.Y("name:N", title=None, sort=list(carriers["name"]), axis=alt.Axis(grid=True, labelLimit=300))
    flights = int(delays["flights"].sum())
    title = f"{flights:,} flights from New York in 2013: late by carrier and weather at departure"
    picture = alt.hconcat(
        _draw_delays(delays.join(carriers[["name"]], on="carrier"), carriers, names),
        _draw_cancelled(carriers, names.axis(alt.Axis(labels=False, ticks=False, grid=True))),
        title=title,
    )
    picture.save(path, scale_factor=1.5)


def _draw_delays(delays: pd.DataFrame, carriers: pd.DataFrame, names: alt.Y) -> alt.LayerChart | alt.FacetChart:
    weathers, colours, shapes = list(_LOOKS), [c for c, _ in _LOOKS.values()], [s for _, s in _LOOKS.values()]
    rows = delays[delays["weather"].isin(weathers) & (delays["flights"] >= _FEW)]
    legend = alt.Legend(title=["weather", f"({_FEW} flights at least;", "black: all)"])
    points = alt.Chart(rows[["name", "weather", "mean_dep_delay"]]).mark_point(filled=True, size=80, opacity=1)
    means = alt.Chart(carriers[["name", "mean"]]).mark_tick(color="black", thickness=2, size=20)
    return alt.layer(
        means.encode(x="mean:Q", y=names),
        points.encode(
            x=alt.X("mean_dep_delay:Q", title="mean delay of departures (minutes)"),
            y=names,
            color=alt.Color("weather:N", scale=alt.Scale(domain=weathers, range=colours), legend=legend),
            shape=alt.Shape("weather:N", scale=alt.Scale(domain=weathers, range=shapes), legend=legend),
        ),
    ).properties(width=520, height=alt.Step(32))


def _draw_cancelled(carriers: pd.DataFrame, names: alt.Y) -> alt.LayerChart | alt.FacetChart:
    share = alt.X("share:Q", title=["cancelled (% of flights;", "number beside the bar)"], axis=alt.Axis(format="%"))
    chart = alt.Chart(carriers[["name", "share", "cancelled"]]).encode(x=share, y=names)
    numbers = chart.mark_text(align="left", dx=4).encode(text=alt.Text("cancelled:Q", format=","))
    return alt.layer(chart.mark_bar(color="#999999", size=14), numbers).properties(width=180, height=alt.Step(32))
