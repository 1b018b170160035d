"""What becomes of a record whose attempt has failed. Plain; times are passed in."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, NamedTuple

from aioparallel.engine.gates import NoRoom
from aioparallel.errors import ConfigurationError, NotToBlame, OutOfResources, Reject, RetryLater, UndecodableRecord
from aioparallel.history import failure_of, history_of
from aioparallel.policies import EndOfRetries, RetryBudget, RetryPolicy, Verdict
from aioparallel.records import Record

__all__ = ["Decision", "Failures", "NotDue"]

# Seconds for which a record waits for what the process lacks, where waits are to have an end: a job has one.
_LONGEST_SHORTAGE: Final = 60.0


class NotDue(Exception):
    """Raised around a handler in place of an attempt: the record, from a retry topic, is not due yet."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"due in {delay:g} s")
        self.delay = delay


class Decision(NamedTuple):
    """What to do with the record: one of the first three is set."""

    delay: float | None = None
    """Seconds until its next attempt."""
    retry_topic: str | None = None
    """Where it waits instead."""
    end: EndOfRetries | None = None
    """What becomes of it for good."""
    waits: bool = False
    """It was no attempt: the record is not due yet, or its handler requests a delay."""
    no_room: NoRoom | None = None
    """Where it waits to be woken; ``delay`` then: the seconds after which it is tried all the same; perhaps infinite.
    """


class Failures:
    """Decides by a policy, and notes each failure on its record."""

    def __init__(self, retry_budget: RetryBudget) -> None:
        self._budget = retry_budget
        self.end = retry_budget.end
        """What becomes of a record that no retry topic takes."""
        topics = retry_budget.retry_topics
        # The topic after each; records of any other topic begin with the first.
        chain: list[str | None] = [*topics, None]
        self._next_topic = dict(itertools.pairwise(chain))
        self._first_topic = topics[0] if topics else None

    def decide(self, record: Record[Any, Any], error: Exception, now: float, at: float, *, beside: int = 0) -> Decision:
        """``now``: the event loop's time, by which budgets count. ``at``: seconds since the epoch,
        which are kept with the failure. ``beside``: so many other records have failed with it, in one call: no record
        is given up for what another may have failed with, so it runs by itself before that.

        Raises what the user's retry function raises, or ConfigurationError for what it returns."""
        decision = self._decide(record, error, now, at)
        if beside and decision.delay is None:
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
            if isinstance(error, Reject | UndecodableRecord):
                return Decision(end=self._end_of(record, error))
            verdict = self._verdict(record, error, now)
            if isinstance(verdict, int | float):
                return Decision(delay=float(verdict))
        if verdict is None:
            topic = self._next_topic.get(record.topic, self._first_topic)
            return Decision(retry_topic=topic) if topic else Decision(end=self._budget.end)
        return Decision(end=verdict)

    def _counts(self, error: RetryLater) -> bool:
        """Whether waiting is failing. What the library itself waits for never is."""
        retry = self._budget.retry
        return isinstance(retry, RetryPolicy) and retry.count_waits and not isinstance(error, NotToBlame)

    def _verdict(self, record: Record[Any, Any], error: Exception, now: float) -> Verdict | None:
        retry, history = self._budget.retry, history_of(record)
        attempts = record.attempt - history.attempts_before
        if isinstance(retry, RetryPolicy):
            since = now if history.trying_since is None else history.trying_since
            return retry.delay(error, attempts, max(0.0, now - since - history.waited))
        return self._checked(record, retry(record, error, attempts))

    def _end_of(self, record: Record[Any, Any], error: Reject | UndecodableRecord) -> EndOfRetries:
        """Without another attempt, and without another delivery, which would read the same. What a handler rejects it
        has decided itself; of what it never saw a function decides."""
        retry = self._budget.retry
        if isinstance(error, Reject) or isinstance(retry, RetryPolicy):
            return self._budget.end
        verdict = self._checked(record, retry(record, error, record.attempt - history_of(record).attempts_before))
        return self._budget.end if verdict == "release" or not isinstance(verdict, str) else verdict

    def _verdict_on_waiting(self, record: Record[Any, Any], error: RetryLater, now: float) -> Verdict | None:
        retry, history = self._budget.retry, history_of(record)
        if not error.is_bounded:
            return error.delay
        if isinstance(retry, RetryPolicy):
            since = now if history.waiting_since is None else history.waiting_since
            if isinstance(error, NoRoom):  # it does not know for how long: its budget ends when it has
                return retry.wait(0.0, now - since)
            if isinstance(error, OutOfResources) and retry.count_waits and retry.max_wait is None:
                lacking = 0.0 if history.lacking_since is None else now - history.lacking_since
                return error.delay if lacking + error.delay <= _LONGEST_SHORTAGE else None
            return retry.wait(error.delay, now - since)
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
        """Seconds for which it may go on waiting."""
        retry, since = self._budget.retry, history_of(record).waiting_since
        if not isinstance(retry, RetryPolicy) or retry.max_wait is None or since is None:
            return math.inf
        return max(0.0, since + retry.max_wait - now)

    def _checked(self, record: Record[Any, Any], verdict: object) -> Verdict:
        if isinstance(verdict, int | float) and not isinstance(verdict, bool) and 0 <= verdict < 1e7:
            return float(verdict)
        if verdict == "dead_letter" and self._budget.end != "dead_letter":
            raise ConfigurationError(
                "FailurePolicy retry",
                verdict,
                f"is what the function said of {record!r}, but there is no dead_letter to send it to",
            )
        if verdict in ("dead_letter", "skip", "stop") or (verdict == "release" and self._budget.redelivers):
            return verdict
        raise ConfigurationError(
            "FailurePolicy retry",
            verdict,
            f'is what the function said of {record!r}; it must be seconds (0 or more), "dead_letter", "skip" or "stop"',
        )
