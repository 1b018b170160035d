"""Decides what happens to a record whose attempt has failed. Pure: times are passed in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import CoroutineType
from typing import Any, Final, NamedTuple

from aioparallel.config.policies import EndOfRetries, QueueVerdict, RetryBudget, RetryPolicy
from aioparallel.engine.outcomes.gates import NoRoom
from aioparallel.records.errors import (
    ConfigurationError,
    DeserializationError,
    NotToBlame,
    OutOfResources,
    Reject,
    RetryLater,
    UndecodableRecord,
)
from aioparallel.records.history import History, failure_of, history_of
from aioparallel.records.record import Record

__all__ = ["Decision", "Failures", "NotDue", "delay_of", "wait_of"]

# How many seconds a record waits for resources that the process lacks, if waits are counted without a limit of their
# own (RetryPolicy.count_waits without max_wait).
_LONGEST_SHORTAGE: Final = 60.0
_PASSING: Final = (408, 429)  # HTTP statuses that may be others later, beside 5xx
_LONGEST_CHAIN: Final = 20  # causes of an error that are looked at; a chain may be a circle


class NotDue(Exception):
    """Raised instead of an attempt: the record comes from a retry topic and is not due yet."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"due in {delay:g} s")
        self.delay = delay


_RELEASE: Final = '"release", '


class Decision(NamedTuple):
    """What to do with a record. One of the first three fields is set."""

    delay: float | None = None
    """Seconds until its next attempt."""
    retry_topic: str | None = None
    """The topic in which it waits instead."""
    end: EndOfRetries | None = None
    """How it ends, without another attempt."""
    waits: bool = False
    """No attempt is counted: the record is not due yet, or its handler requests a delay."""
    no_room: NoRoom | None = None
    """The full gate that will wake it. ``delay``: seconds after which it is tried anyway; may be infinite."""
    by_function: bool = False
    """The user's retry function has chosen ``end``."""


def delay_of(retry: RetryPolicy, history: History, error: Exception, attempts: int, now: float) -> float | None:
    """Returns the seconds until the next attempt after a failed one; None: the retries have ended."""
    since = now if history.trying_since is None else history.trying_since
    return retry.delay(error, attempts, max(0.0, now - since - history.waited))


def wait_of(retry: RetryPolicy, history: History, error: RetryLater, now: float) -> float | None:
    """Returns the seconds of a wait that is no failed attempt; None: the retries have ended."""
    since = now if history.waiting_since is None else history.waiting_since
    if isinstance(error, NoRoom):  # the length of the wait is unknown, so only the time waited so far counts
        return retry.wait(0.0, now - since)
    if isinstance(error, OutOfResources) and retry.count_waits and retry.max_wait is None:
        lacking = 0.0 if history.lacking_since is None else now - history.lacking_since
        return error.delay if lacking + error.delay <= _LONGEST_SHORTAGE else None
    return retry.wait(error.delay, now - since)


class Failures:
    """Decides by a retry budget, and notes each failure in the history of its record."""

    def __init__(self, retry_budget: RetryBudget) -> None:
        self._budget = retry_budget
        self.redelivers = retry_budget.redelivers
        """Whether records that do not end are delivered again."""
        self.end = retry_budget.end
        """How a record ends that no retry topic takes."""
        topics = retry_budget.retry_topics
        # Each retry topic is followed by the next one. Records of any other topic begin with the first.
        chain: list[str | None] = [*topics, None]
        self._next_topic = dict(itertools.pairwise(chain))
        self._first_topic = topics[0] if topics else None

    def decide(self, record: Record[Any, Any], error: Exception, now: float, at: float, *, others: int = 0) -> Decision:
        """Decide after a failed attempt.

        ``now``: the event loop's time, for budgets. ``at``: seconds since the epoch, stored with the failure.
        ``others``: how many other records failed with it in one call. Another one may be to blame, so the record runs
        alone once before it is given up.

        Raises what the user's retry function raises, or ConfigurationError for what it returns.
        """
        decision = self._decide(record, error, now, at)
        if others and decision.delay is None:
            may_retry = self._budget.may_retry
            if may_retry is not None and not may_retry(record):
                return Decision(end="release")
            history_of(record).alone = True
            return Decision(delay=0.0)
        return decision

    def _decide(self, record: Record[Any, Any], error: Exception, now: float, at: float) -> Decision:
        history = history_of(record)
        if isinstance(error, NotDue):
            history.idle_parks += 1
            return Decision(delay=error.delay, waits=True)
        if isinstance(error, RetryLater) and not self._counts(error):
            verdict = self._verdict_on_waiting(record, error, now)
            if isinstance(verdict, int | float):
                return self._waiting(record, error, verdict, now)
            history.failed(failure_of(error, at), now)
        else:
            history.lacking_since = None
            history.failed(failure_of(error, at), now)
            if isinstance(error, Reject | UndecodableRecord) or self._is_unreadable(error):
                return self._end_of(record, error)
            verdict = self._verdict(record, error, now)
            if isinstance(verdict, int | float):
                return Decision(delay=float(verdict))
        if verdict is None:
            topic = self._next_topic.get(record.topic, self._first_topic)
            return Decision(retry_topic=topic) if topic else Decision(end=self._budget.end)
        return Decision(end=verdict, by_function=True)

    def _counts(self, error: RetryLater) -> bool:
        """Whether a requested delay counts as a failed attempt. Waits of the library itself never do."""
        # A queue's retry function has this attribute as well.
        return bool(getattr(self._budget.retry, "count_waits", False)) and not isinstance(error, NotToBlame)

    def _verdict(self, record: Record[Any, Any], error: Exception, now: float) -> QueueVerdict | None:
        retry, history = self._budget.retry, history_of(record)
        attempts = record.attempt - history.attempts_before
        if isinstance(retry, RetryPolicy):
            return delay_of(retry, history, error, attempts, now)
        return self._checked(record, retry(record, error, attempts))

    def _is_unreadable(self, error: Exception) -> bool:
        """Whether the same bytes would give the same error again, and the record has somewhere to go. Where the end
        would stop the run, only the record's key waits for another deserializer."""
        return (
            isinstance(error, DeserializationError)
            and not any(map(_may_pass, _causes(error)))
            and self._budget.end in ("dead_letter", "skip")
            and isinstance(self._budget.retry, RetryPolicy)
        )

    def _end_of(self, record: Record[Any, Any], error: Exception) -> Decision:
        """How a rejected or undecodable record ends: without another attempt or another delivery, which would change
        nothing. For an undecodable record, the user's retry function is asked."""
        retry = self._budget.retry
        if isinstance(error, Reject) or isinstance(retry, RetryPolicy):
            return Decision(end=self._budget.end)
        verdict = self._checked(record, retry(record, error, record.attempt - history_of(record).attempts_before))
        if verdict == "release" or not isinstance(verdict, str):
            return Decision(end=self._budget.end)
        return Decision(end=verdict, by_function=True)

    def _verdict_on_waiting(self, record: Record[Any, Any], error: RetryLater, now: float) -> QueueVerdict | None:
        retry, history = self._budget.retry, history_of(record)
        if not error.is_bounded:
            return error.delay
        if isinstance(retry, RetryPolicy):
            return wait_of(retry, history, error, now)
        if isinstance(error, NotToBlame) and not self._budget.redelivers:
            return error.delay
        return self._checked(record, retry(record, error, record.attempt - history.attempts_before))

    def _waiting(self, record: Record[Any, Any], error: RetryLater, delay: float, now: float) -> Decision:
        if isinstance(error, NoRoom):
            history_of(record).turned_away(now)
            return Decision(delay=self._budget_left(record, now), waits=True, no_room=error)
        history_of(record).waits(delay, now, lacks=isinstance(error, OutOfResources))
        return Decision(delay=float(delay), waits=True)

    def _budget_left(self, record: Record[Any, Any], now: float) -> float:
        """How many seconds the record may still wait."""
        retry, since = self._budget.retry, history_of(record).waiting_since
        if not isinstance(retry, RetryPolicy) or retry.max_wait is None or since is None:
            return math.inf
        return max(0.0, since + retry.max_wait - now)

    def _checked(self, record: Record[Any, Any], verdict: object) -> QueueVerdict:
        if isinstance(verdict, int | float) and not isinstance(verdict, bool) and 0 <= verdict < 1e7:
            return float(verdict)
        if verdict == "dead_letter" and self._budget.end != "dead_letter":
            raise ConfigurationError(
                self._budget.option,
                verdict,
                f"is what the function returned for {record!r}, but there is no dead_letter",
            )
        if verdict in ("dead_letter", "skip", "stop") or (verdict == "release" and self._budget.redelivers):
            return verdict
        if isinstance(verdict, CoroutineType):
            verdict.close()  # nothing awaits it
        raise ConfigurationError(
            self._budget.option,
            verdict,
            f"is what the function returned for {record!r}; it must be seconds (0 or more), "
            f'{_RELEASE if self._budget.redelivers else ""}"dead_letter", "skip" or "stop"',
        )


def _may_pass(error: BaseException) -> bool:
    """Whether a deserializer's error may be another one, or none, later: memory is free again, a schema registry is
    reached. Clients of registries tell HTTP statuses by ``http_status_code``, ``status`` or ``response.status_code``.
    """
    if isinstance(error, OSError | MemoryError):
        return True
    response = getattr(error, "response", None)
    statuses = (
        getattr(error, "http_status_code", None),
        getattr(error, "status", None),
        getattr(response, "status_code", None),
    )
    return any(type(one) is int and (one in _PASSING or 500 <= one < 600) for one in statuses)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What the error was raised from: clients wrap the OSError of a connection in exceptions of their own."""
    for _ in range(_LONGEST_CHAIN):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            return
        yield cause
        error = cause
