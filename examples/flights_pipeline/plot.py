"""The picture: mean delay of each carrier's departures in each weather."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["draw"]

# Okabe and Ito's colours, told apart by colour-blind people too; and shapes besides.
_LOOKS: Final = {
    "fair": ("#0072B2", "o"),
    "windy": ("#009E73", "s"),
    "rain or snow": ("#E69F00", "^"),
    "poor visibility": ("#D55E00", "D"),
}
_FEW: Final = 25
"""A mean of fewer flights says little, and is left out."""


def draw(delays: pd.DataFrame, cancelled: pd.Series, path: Path) -> None:
    """Draw into a PNG file. ``delays``: as Spark writes them; ``cancelled``: flights, by carrier."""
    carriers = delays.groupby("carrier").agg({"airline": "first", "flights": "sum", "dep_delay": "sum"})
    carriers = carriers.assign(mean=carriers["dep_delay"] / carriers["flights"]).sort_values("mean")
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    flights = int(delays["flights"].sum())
    figure.suptitle(f"{flights:,} flights from New York in 2013: late by carrier and weather at departure")
    _draw_delays(left, delays, carriers)
    _draw_cancelled(right, cancelled, carriers)
    figure.savefig(path, dpi=120)


def _draw_delays(axes: Axes, delays: pd.DataFrame, carriers: pd.DataFrame) -> None:
    places = {carrier: place for place, carrier in enumerate(carriers.index)}
    for weather, (colour, marker) in _LOOKS.items():
        rows = delays[(delays["weather"] == weather) & (delays["flights"] >= _FEW)]
        if rows.empty:
            continue
        heights = [places[carrier] for carrier in rows["carrier"]]
        axes.scatter(rows["mean_dep_delay"], heights, s=60, color=colour, marker=marker, label=weather, zorder=3)
    for place, mean in enumerate(carriers["mean"]):
        axes.plot([mean, mean], [place - 0.35, place + 0.35], color="black", linewidth=1.5, zorder=2)
    axes.plot([], [], color="black", linewidth=1.5, label="all of the carrier")
    axes.set_yticks(range(len(carriers)), [f"{row.airline} ({row.Index})" for row in carriers.itertuples()])
    axes.set_xlabel("mean delay of departures (minutes)")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", title=f"weather ({_FEW} flights at least)", framealpha=0.95)


def _draw_cancelled(axes: Axes, cancelled: pd.Series, carriers: pd.DataFrame) -> None:
    gone = cancelled.reindex(carriers.index, fill_value=0)
    shares = 100 * gone / (carriers["flights"] + gone)
    bars = axes.barh(range(len(carriers)), shares, color="#999999")
    axes.bar_label(bars, [f"{number:,}" for number in gone], padding=3, fontsize=8)
    axes.set_xlabel("cancelled (% of flights;\nnumber beside the bar)")
    axes.margins(x=0.2)
    axes.grid(visible=True, axis="x", alpha=0.3)
