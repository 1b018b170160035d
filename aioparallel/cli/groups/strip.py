"""An offset map as a row of cells. Pure."""

from __future__ import annotations

import enum
from bisect import bisect_left
from typing import Final, NamedTuple

from aioparallel.offsets import OffsetMap

__all__ = ["ASCII", "BLOCKS", "Cell", "Letters", "cells"]


class Cell(enum.Enum):
    """How much of a range of offsets is complete."""

    COMPLETE = "complete"
    PARTLY = "partly"
    INCOMPLETE = "incomplete"


class Letters(NamedTuple):
    """A character for each cell."""

    complete: str
    partly: str
    incomplete: str

    def of(self, cell: Cell) -> str:
        """The character of this cell."""
        return str(getattr(self, cell.value))


BLOCKS: Final = Letters("\u2588", "\u2592", "\u00b7")
ASCII: Final = Letters("#", "+", ".")
"""For terminals that cannot show the others."""


def cells(known: OffsetMap, start: int, highest: int, width: int) -> list[Cell]:
    """``width`` ranges of equal size from ``start`` to ``highest``, both included; one for each offset if there are
    fewer. Empty if ``highest`` is below ``start``."""
    size = highest - start + 1
    if size <= 0 or width <= 0:
        return []
    count = min(width, size)
    row: list[Cell] = []
    for number in range(count):
        first, after = start + size * number // count, start + size * (number + 1) // count
        missing = bisect_left(known.incompletes, after) - bisect_left(known.incompletes, first)
        if not missing:
            row.append(Cell.COMPLETE)
        else:
            row.append(Cell.INCOMPLETE if missing == after - first else Cell.PARTLY)
    return row
