"""From outcomes to Arrow batches: as many rows in each as serves, and what is wrong with those that do not fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, Literal

from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField

from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.sizes import Sized
from aioparallel.engine.flow.work import Label
from aioparallel.records.errors import InvalidOutput
from aioparallel.spark.values import text_of

__all__ = ["EMITTED", "Results", "emitted"]

logger = logging.getLogger(__name__)

EMITTED: Final = (
    StructField("error", StringType()),
    StructField("attempts", IntegerType(), nullable=False),
    StructField("seconds", DoubleType(), nullable=False),
)
"""What stands beside a value where failures are values too. ``error``: "ValueError: what it said", or null;
``seconds``: from the start of the first attempt to the end of the last one."""

# Rows of an output batch, at most, and the bytes that it should have. The first has one row, the next twice as many.
_ROWS: Final = 1_000
_BYTES: Final = 8 << 20


def emitted(outcomes: Sequence[Outcome[Any, object]]) -> list[dict[str, object]]:
    """Fields ``value`` and those of :data:`EMITTED`."""
    return [
        {
            "value": value,
            "error": None if error is None else text_of(error),
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
        self._rows = 1

    def of(self, lists: Generator[Sized[Outcome[Any, object]], None, None]) -> Iterator[Any]:
        """Batches of all of them, in their order; one at once, perhaps without rows, for a list that is empty; closes
        ``lists``. Raises InvalidOutput where a misfit ends it all."""
        waiting: list[Outcome[Any, object]] = []
        size = 0
        with contextlib.closing(lists):
            for outcomes in lists:
                if not outcomes:
                    if waiting:
                        yield from self._build(waiting)
                    else:
                        yield self._make([])
                    waiting, size = [], 0
                    continue
                size += outcomes.size
                if size > _BYTES:
                    yield from self._build(waiting)
                    waiting, size = [], outcomes.size
                waiting += outcomes
                count = len(waiting)
                while len(waiting) >= self._rows:  # which building changes
                    full = waiting[: self._rows]
                    del waiting[: len(full)]
                    yield from self._build(full)
                size = size * len(waiting) // count
            yield from self._build(waiting)

    def _build(self, outcomes: list[Outcome[Any, object]]) -> Iterator[Any]:
        if not outcomes:
            return
        if self._on_error == "null":
            self._tell_of_nulls([outcome for outcome in outcomes if outcome.error is not None])
        yield from self._halve(outcomes)

    def _halve(self, outcomes: list[Outcome[Any, object]]) -> Iterator[Any]:
        """One of them may not fit, or all of them be more than an Arrow array holds."""
        try:
            batch = self._make(outcomes)
        except Exception as error:
            if len(outcomes) == 1:
                yield from self._fitting(outcomes[0], error)
                return
            middle = len(outcomes) // 2
            yield from self._halve(outcomes[:middle])
            yield from self._halve(outcomes[middle:])
        else:
            by_bytes = _BYTES * len(batch) // max(1, batch.nbytes)
            self._rows = max(1, min(_ROWS, 2 * self._rows, by_bytes))
            yield batch

    def _fitting(self, outcome: Outcome[Any, object], error: Exception) -> Iterator[Any]:
        """What is left of one that does not fit."""
        place = self._label(outcome.item, outcome.index)
        wrong = (self._wrong_with(outcome.value) if outcome.error is None else None) or text_of(error)
        said = InvalidOutput(f"what the handler returned for {place} does not fit the declared schema: {wrong}")
        if self._on_error == "raise" or outcome.error is not None:
            raise said from error
        if self._on_error == "emit":
            yield self._make([outcome._replace(value=None, error=said)])
            return
        left = "left out" if self._on_error == "skip" else "null"
        logger.warning("%s; it is %s", said, left, extra={"action": "row_does_not_fit"})
        if self._on_error == "null":
            yield self._make([outcome._replace(value=None)])

    def _wrong_with(self, value: object) -> str | None:
        try:
            return self._misfit(value)
        except Exception as error:  # of an object of the handler's, when it was looked into
            return text_of(error)

    def _tell_of_nulls(self, failed: list[Outcome[Any, object]]) -> None:
        if failed:
            first = failed[0]
            logger.warning(
                "%d calls failed for good and are null, the first of them %s: %s",
                len(failed),
                self._label(first.item, first.index),
                text_of(first.error) if first.error is not None else "",
                extra={"action": "rows_null"},
            )
