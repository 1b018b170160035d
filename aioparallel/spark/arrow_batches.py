"""Makes Arrow batches of outcomes, with as many rows in each as is useful, and reports values that do not fit."""

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
"""Fields that accompany a value if failures are values, too. ``error``: "ValueError: its text", or null; ``seconds``:
from the start of the first attempt to the end of the last one."""

# The most rows and the intended bytes of a batch. The first batch has one row, the next twice as many, and so on.
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
    """``build`` makes a batch, or an array, of outcomes. ``misfit``: what is wrong with a value and where in it, as in
    :class:`~aioparallel.spark.builders.Builder`. ``on_error``: for outcomes whose value does not fit."""

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
        """Yields batches of all outcomes in their order. An empty list yields a batch at once, which may be empty.
        Closes ``lists``. Raises InvalidOutput for a value that does not fit, depending on ``on_error``."""
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
                while len(waiting) >= self._rows:  # _build changes it
                    full = waiting[: self._rows]
                    del waiting[: len(full)]
                    yield from self._build(full)
                size = size * len(waiting) // count
            yield from self._build(waiting)

    def _build(self, outcomes: list[Outcome[Any, object]]) -> Iterator[Any]:
        if not outcomes:
            return
        if self._on_error == "null":
            self._log_nulls(outcomes)
        yield from self._halve(outcomes)

    def _halve(self, outcomes: list[Outcome[Any, object]]) -> Iterator[Any]:
        """Builds halves if a value does not fit, or if all of them exceed an Arrow array."""
        try:
            batch = self._make(outcomes)
        except Exception as error:
            if len(outcomes) == 1:
                yield from self._misfitting(outcomes[0], error)
                return
            middle = len(outcomes) // 2
            yield from self._halve(outcomes[:middle])
            yield from self._halve(outcomes[middle:])
        else:
            by_bytes = _BYTES * len(batch) // max(1, batch.nbytes)
            self._rows = max(1, min(_ROWS, 2 * self._rows, by_bytes))
            yield batch

    def _misfitting(self, outcome: Outcome[Any, object], error: Exception) -> Iterator[Any]:
        place = self._label(outcome.item, outcome.index)
        wrong = (self._wrong_with(outcome.value) if outcome.error is None else None) or text_of(error)
        invalid = InvalidOutput(f"what the handler returned for {place} does not fit the declared schema: {wrong}")
        if self._on_error == "raise" or outcome.error is not None:
            raise invalid from error
        if self._on_error == "emit":
            yield self._make([outcome._replace(value=None, error=invalid)])
            return
        left = "left out" if self._on_error == "skip" else "null"
        logger.warning("%s; it is %s", invalid, left, extra={"action": "row_does_not_fit"})
        if self._on_error == "null":
            yield self._make([outcome._replace(value=None)])

    def _wrong_with(self, value: object) -> str | None:
        try:
            wrong = self._misfit(value)
        except Exception as error:  # raised by an object of the handler
            return text_of(error)
        if wrong is None:
            return None
        return wrong[1:] if wrong[0] == "." else f"it{wrong}"

    def _log_nulls(self, outcomes: list[Outcome[Any, object]]) -> None:
        failed = [(one.item, one.index, one.error) for one in outcomes if one.error is not None]
        if failed:
            item, index, error = failed[0]
            logger.warning(
                "%d calls failed for good and are null, the first of them %s: %s",
                len(failed),
                self._label(item, index),
                text_of(error),
                extra={"action": "rows_null"},
            )
