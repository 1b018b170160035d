"""From outcomes to Arrow batches: as many rows in each as serves, and what is wrong with those that do not fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField

from aioparallel.engine.flow import Outcome
from aioparallel.engine.work import Label
from aioparallel.errors import InvalidOutput

__all__ = ["EMITTED", "Results", "emitted"]

logger = logging.getLogger(__name__)

EMITTED: Final = (
    StructField("error", StringType()),
    StructField("attempts", IntegerType(), nullable=False),
    StructField("seconds", DoubleType(), nullable=False),
)
"""What stands beside a value where failures are values too. ``error``: "ValueError: what it said", or null;
``seconds``: from the start of the first attempt to the end of the last one."""

# Rows of an output batch, at most, the bytes that it should have, and seconds that the first of them may wait.
_ROWS: Final = 1_000
_FIRST_ROWS: Final = 100
_BYTES: Final = 8 << 20
_SECONDS: Final = 0.5


def emitted(outcomes: Sequence[Outcome[Any, object]]) -> list[dict[str, object]]:
    """Fields ``value`` and those of :data:`EMITTED`."""
    return [
        {
            "value": value,
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "attempts": attempts,
            "seconds": seconds,
        }
        for _, _, value, error, attempts, seconds in outcomes
    ]


class Results:
    """``build`` makes a batch, or an array, of outcomes; ``misfit`` says what is wrong with a value, or None.

    ``on_error``: what becomes of a row whose value does not fit.
    """

    def __init__(
        self,
        build: Callable[[list[Outcome[Any, object]]], Any],
        misfit: Callable[[object], str | None],
        on_error: Literal["raise", "emit", "skip", "null"],
        label: Label,
    ) -> None:
        self._make = build
        self._misfit = misfit
        self._on_error = on_error
        self._label = label
        self._rows = _FIRST_ROWS

    def of(self, lists: Iterable[list[Outcome[Any, object]]]) -> Iterator[Any]:
        """Batches of all of them, in their order. Raises InvalidOutput where a misfit ends it all."""
        waiting: list[Outcome[Any, object]] = []
        since = time.monotonic()
        for outcomes in lists:
            waiting += outcomes
            while len(waiting) >= self._rows:  # which building changes
                full = waiting[: self._rows]
                del waiting[: len(full)]
                yield self._build(full)
                since = time.monotonic()
            if waiting and time.monotonic() - since > _SECONDS:
                yield self._build(waiting)
                waiting, since = [], time.monotonic()
        if waiting:
            yield self._build(waiting)

    def _build(self, outcomes: list[Outcome[Any, object]]) -> Any:
        if self._on_error == "null":
            self._tell_of_nulls([outcome for outcome in outcomes if outcome.error is not None])
        try:
            batch = self._make(outcomes)
        except Exception:  # one of them does not fit: say which
            batch = self._make([fitting for one in outcomes if (fitting := self._fitting(one)) is not None])
        self._rows = max(1, min(_ROWS, _BYTES * len(batch) // max(1, batch.nbytes)))
        return batch

    def _fitting(self, outcome: Outcome[Any, object]) -> Outcome[Any, object] | None:
        if outcome.error is not None or (wrong := self._misfit(outcome.value)) is None:
            return outcome
        place = self._label(outcome.item, outcome.index)
        error = InvalidOutput(f"what the handler returned for {place} does not fit the declared schema: {wrong}")
        if self._on_error == "raise":
            raise error
        if self._on_error == "emit":
            return outcome._replace(value=None, error=error)
        left = "left out" if self._on_error == "skip" else "null"
        logger.warning("%s; it is %s", error, left, extra={"action": "row_does_not_fit"})
        return outcome._replace(value=None) if self._on_error == "null" else None

    def _tell_of_nulls(self, failed: list[Outcome[Any, object]]) -> None:
        if failed:
            first = failed[0]
            logger.warning(
                "%d calls failed for good and are null, the first of them %s: %r",
                len(failed),
                self._label(first.item, first.index),
                first.error,
                extra={"action": "rows_null"},
            )
