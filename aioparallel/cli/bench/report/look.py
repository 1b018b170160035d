"""How all plots look: who is drawn how, axes, labels. Nothing is told by colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "EndLabel",
    "Look",
    "count_axis",
    "finish",
    "label_ends",
    "look_of",
    "new_figure",
    "save",
    "shown_name",
]

# Okabe and Ito's palette: told apart with every kind of colour vision, and in grey.
BLUE, GREEN, VERMILION, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#E69F00", "#8C8C8C"
BLACK: Final = "#222222"

DPI: Final = 120
LABEL_HEIGHT: Final = 15.0
"""Pixels between two labels at the ends of lines."""


class Look(NamedTuple):
    """A contestant's colour, with what tells it apart without colours. ``hatch`` for bars, the others for lines."""

    colour: str
    hatch: str
    marker: str
    line: str


OURS: Final = Look(BLUE, "", "o", "-")
JVM: Final = Look(VERMILION, "xx", "s", "--")
PLAIN: Final = Look(GREEN, "//", "^", "-.")
LIBRARY: Final = Look(ORANGE, "..", "D", ":")
LIMIT: Final = Look(GREY, "--", "", "-")
LOOKS: Final = {
    "ours": OURS,
    "ceiling": LIMIT,
    "getmany": PLAIN,
    "async-for": PLAIN,
    "task-per-record": PLAIN,
    "java": JVM,
    "java-256m": JVM,
}


def look_of(contestant: str) -> Look:
    """How it is drawn: ours, the limit, plain aiokafka, the JVM, and other libraries each have a look."""
    return LOOKS.get(contestant, LIBRARY)


def new_figure(title: str, width: float, height: float) -> Figure:
    """A figure of so many inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def save(figure: Figure, path: Path) -> None:
    """As PNG."""
    figure.savefig(path, dpi=DPI)


def finish(axes: Axes, *, grid: str) -> None:
    """No frame but the axes, and a light grid along ``grid``, "x", "y" or "both"."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis=grid, alpha=0.3)  # type: ignore[arg-type]


def shown_name(contestant: str) -> str:
    """As it is called in a plot, which may be looked at far from here."""
    return "aioparallel" if contestant == "ours" else contestant


def count_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with a tick at each of these numbers and nowhere else."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,.0f}" for value in values])
    axes.minorticks_off()


class EndLabel(NamedTuple):
    """A line's name at its last point, in the colour of the line."""

    x: float
    y: float
    text: str
    colour: str


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write them to the right of the points, moved upwards where they would lie on each other.

    Limits and scales of the axes have to stand already.
    """
    least = float("-inf")
    for label in sorted(labels, key=lambda label: label.y):
        at = axes.transData.transform((label.x, label.y))[1]
        moved = max(at, least)
        least = moved + LABEL_HEIGHT * axes.figure.dpi / DPI
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(8, (moved - at) * 72 / axes.figure.dpi),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=label.colour,
            annotation_clip=False,
        )
