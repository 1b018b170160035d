"""Log lines about failed records. A flood of failures does not flood the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from aioparallel.engine.outcomes.failures import Decision
from aioparallel.observe.record_logging import about, coordinates
from aioparallel.records.errors import (
    AioparallelError,
    BadStatus,
    LastDelivery,
    Reject,
    RequestFailed,
    RequestTimeout,
    RetryLater,
    UndecodableRecord,
)
from aioparallel.records.record import Record
from aioparallel.records.user_errors import repr_of, text_of

__all__ = ["FailureLog"]

logger = logging.getLogger(__name__)

# For each class of exception: so many lines at once, then one a second, and one traceback a minute. Last attempts have
# a budget of their own.
_BURST = 10
_TRACEBACK_PAUSE = 60.0
_CLASSES = 1_000  # the most classes that are remembered
_LONG = 300
"""Characters. If the repr of an error is longer, as aiohttp's with all headers, so much of its message is logged."""


_ENDS: Final[Mapping[str | None, str]] = {
    "dead_letter": "no more attempts: it becomes a dead letter",
    "skip": 'SKIPPED: no more attempts, and give_up="skip" completes it',
    "release": "no more attempts here: the queue delivers it again, or dead-letters it",
}
"""By the end of a record, what happens next. A stop has no line: the run raises an error that says so."""


def _short(error: Exception) -> str:
    text = repr_of(error)
    if len(text) <= _LONG or isinstance(error, AioparallelError):
        return text
    message = text_of(error)
    return f"{type(error).__name__}: {message[:_LONG]}{'…' if len(message) > _LONG else ''}"


class _Budget:
    """How many lines one class of exception may still log."""

    __slots__ = ("left", "suppressed", "traceback_at", "updated")

    def __init__(self, now: float) -> None:
        self.left = float(_BURST)
        self.updated = now
        self.suppressed = 0
        self.traceback_at = -_TRACEBACK_PAUSE

    def spend(self, now: float) -> bool:
        """Return whether one more line may be written, and count it."""
        self.left = min(_BURST, self.left + now - self.updated)
        self.updated = now
        if self.left < 1:
            self.suppressed += 1
            return False
        self.left -= 1
        return True


class FailureLog:
    """Logs failed records and what happens to them. Times are in seconds. ``fields``: added to each line. ``skipped``,
    ``released``: what happens to a record that ends so, in words."""

    def __init__(
        self,
        fields: Mapping[str, object] | None = None,
        skipped: str = _ENDS["skip"],
        released: str = _ENDS["release"],
    ) -> None:
        self.fields = dict(fields or {})
        self._ends = {**_ENDS, "skip": skipped, "release": released}
        self._budgets: dict[tuple[type[BaseException], bool], _Budget] = {}

    def decided(
        self, record: Record[Any, Any], error: Exception, decision: Decision, now: float, others: int = 0
    ) -> None:
        """Log a failed attempt. ``others``: how many other records of its batch failed with it."""
        with about(record):
            self._decided(record, error, decision, now, others)

    def _decided(self, record: Record[Any, Any], error: Exception, decision: Decision, now: float, others: int) -> None:
        following = self.following(decision)
        if following is None:
            return
        if isinstance(error, RetryLater) and decision.delay is not None:
            logger.debug(
                "%s asks to be tried again in %g s: %s",
                record,
                decision.delay,
                text_of(error),
                extra={"action": "retry_later", **self.fields, **coordinates(record)},
            )
            return
        budget = self._budget(type(error), decision.delay is None, now)
        if decision.end != "skip" and not budget.spend(now):
            return  # a skipped record always has a line
        more = f" ({budget.suppressed} more lines about {type(error).__name__} left out)" if budget.suppressed else ""
        budget.suppressed = 0
        # No traceback: the user raises Reject and RetryLater on purpose, and the other messages are complete.
        known = isinstance(
            error, Reject | RetryLater | RequestFailed | RequestTimeout | BadStatus | UndecodableRecord | LastDelivery
        )
        traceback = now - budget.traceback_at >= _TRACEBACK_PAUSE and not known
        if traceback:
            budget.traceback_at = now
        logger.warning(
            "%s%s failed (%sattempt %d): %s; %s%s",
            record.place,
            f" and {others} more of its batch" if others else "",
            f"delivery {record.delivery_count}, " if record.delivery_count > 1 else "",
            record.attempt,
            _short(error),
            following,
            more,
            exc_info=error if traceback else None,
            extra={
                **self.fields,
                **coordinates(record),
                "action": "record_skipped" if decision.end == "skip" else "handler_failed",
                "attempt": record.attempt,
                "error": type(error).__name__,
                **({"delivery_count": record.delivery_count} if record.delivery_count > 1 else {}),
            },
        )

    def following(self, decision: Decision) -> str | None:
        """What happens next, in words. None: no line is needed."""
        if decision.delay is not None:
            return f"next attempt in {format(decision.delay, '.3g' if decision.delay < 999 else ',.0f')} s"
        if decision.retry_topic is not None:
            return f"it goes to retry topic {decision.retry_topic!r}"
        if decision.end == "skip" and decision.by_function:
            return 'SKIPPED: the retry function returned "skip", which completes it'
        return self._ends.get(decision.end)

    def _budget(self, kind: type[BaseException], is_last: bool, now: float) -> _Budget:
        # Apart, so that earlier attempts do not use up the lines of last attempts.
        budget = self._budgets.get((kind, is_last))
        if budget is None:
            if len(self._budgets) >= _CLASSES:
                self._budgets.clear()
            budget = self._budgets[kind, is_last] = _Budget(now)
        return budget
