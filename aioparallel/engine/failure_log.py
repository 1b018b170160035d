"""Log lines about failed records: each tells enough to act on, and a flood of failures does not flood the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aioparallel.engine.failures import Decision
from aioparallel.errors import BadStatus, Reject, RequestFailed, RequestTimeout, RetryLater, UndecodableRecord
from aioparallel.record_logging import about, coordinates
from aioparallel.records import Record
from aioparallel.user_errors import repr_of, text_of

__all__ = ["FailureLog"]

logger = logging.getLogger(__name__)

# For each class of exception, apart for last attempts: so many lines at once, then one a second; a traceback once a
# minute.
_BURST = 10
_TRACEBACK_PAUSE = 60.0
_CLASSES = 1_000  # remembered at most


class _Budget:
    """What one class of exception may still log."""

    __slots__ = ("left", "suppressed", "traceback_at", "updated")

    def __init__(self, now: float) -> None:
        self.left = float(_BURST)
        self.updated = now
        self.suppressed = 0
        self.traceback_at = -_TRACEBACK_PAUSE

    def spend(self, now: float) -> bool:
        """Whether one more line may be written."""
        self.left = min(_BURST, self.left + now - self.updated)
        self.updated = now
        if self.left < 1:
            self.suppressed += 1
            return False
        self.left -= 1
        return True


class FailureLog:
    """Logs what was decided about failed records. Times are of any one clock, in seconds. ``fields``: of each line."""

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        self.fields = dict(fields or {})
        self._budgets: dict[tuple[type[BaseException], bool], _Budget] = {}

    def decided(
        self, record: Record[Any, Any], error: Exception, decision: Decision, now: float, beside: int = 0
    ) -> None:
        """One attempt has failed, and this becomes of the record. ``beside``: so many others of its batch, too."""
        with about(record):
            self._decided(record, error, decision, now, beside)

    def _decided(self, record: Record[Any, Any], error: Exception, decision: Decision, now: float, beside: int) -> None:
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
            return  # of a record that is passed over there is always a line
        more = f" ({budget.suppressed} more lines about {type(error).__name__} left out)" if budget.suppressed else ""
        budget.suppressed = 0
        # Who raises Reject or RetryLater knows where; and the message of a request says all there is to know, as does
        # that of a record which cannot be decoded.
        known = isinstance(error, Reject | RetryLater | RequestFailed | RequestTimeout | BadStatus | UndecodableRecord)
        traceback = now - budget.traceback_at >= _TRACEBACK_PAUSE and not known
        if traceback:
            budget.traceback_at = now
        logger.warning(
            "%s%s failed (attempt %d): %s; %s%s",
            record.place,
            f" and {beside} more of its batch" if beside else "",
            record.attempt,
            repr_of(error),
            following,
            more,
            exc_info=error if traceback else None,
            extra={
                **self.fields,
                **coordinates(record),
                "action": "record_skipped" if decision.end == "skip" else "handler_failed",
                "attempt": record.attempt,
                "error": type(error).__name__,
            },
        )

    def following(self, decision: Decision) -> str | None:
        """What comes next, in words; None: nobody needs a line."""
        if decision.delay is not None:
            return f"next attempt in {decision.delay:.3g} s"
        if decision.retry_topic is not None:
            return f"it goes to retry topic {decision.retry_topic!r}"
        if decision.end == "dead_letter":
            return "no more attempts: it becomes a dead letter"
        if decision.end == "skip":
            return 'SKIPPED: no more attempts, and give_up="skip" completes it'
        if decision.end == "release":
            return "no more attempts here: it will be delivered again"
        return None  # it stops the run: what is raised says it

    def _budget(self, kind: type[BaseException], is_last: bool, now: float) -> _Budget:
        # Attempts that are not the last must not use up the lines of those that are.
        budget = self._budgets.get((kind, is_last))
        if budget is None:
            if len(self._budgets) >= _CLASSES:
                self._budgets.clear()
            budget = self._budgets[kind, is_last] = _Budget(now)
        return budget
