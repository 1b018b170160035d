"""Decides about a failed record of a share group: another attempt here, its release, or its dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aioparallel.config.policies import QueueVerdict, RetryPolicy
from aioparallel.engine.outcomes.failures import delay_of, wait_of
from aioparallel.queues.share.deliveries import Deliveries
from aioparallel.queues.share.locks import Locks, reserve_of
from aioparallel.queues.share.sources import lock_of
from aioparallel.records.errors import LockLost, NotToBlame, RetryLater
from aioparallel.records.history import history_of
from aioparallel.records.record import Record

__all__ = ["Redelivery", "ShareRetry"]

ShareRetry = RetryPolicy | Callable[[Record[Any, Any], Exception, int], QueueVerdict]
"""A policy, or a function of the record, the exception and the number of attempts here. It returns seconds until the
next attempt, ``"release"``, ``"dead_letter"``, ``"skip"`` (the record is rejected) or ``"stop"``."""


class Redelivery:
    """A retry function for the engine.

    ``locks``: of the member. ``may_renew()``: whether locks can be renewed, as far as known. ``may_retry(record)``:
    whether another attempt may start: it is not paused, and the run does not end.
    """

    def __init__(
        self,
        retry: ShareRetry,
        deliveries: Deliveries,
        locks: Locks,
        *,
        may_renew: Callable[[], bool],
        may_retry: Callable[[Record[Any, Any]], bool],
    ) -> None:
        self._retry = retry
        self._deliveries = deliveries
        self._locks = locks
        self._may_renew = may_renew
        self._may_retry = may_retry
        self.count_waits = isinstance(retry, RetryPolicy) and retry.count_waits

    def __call__(self, record: Record[Any, Any], error: Exception, attempts: int) -> QueueVerdict:
        """Decide after a failed attempt, or about a wait."""
        lock = lock_of(record)
        if lock is None:
            return "release"  # a stop has dead-lettered it while its handler ran: it is done
        if lock.is_lost or lock.is_given_up or isinstance(error, LockLost):
            return self._end(record)
        verdict = self._verdict(record, error, attempts)
        if not isinstance(verdict, int | float):
            # The engine checks it. What the function releases in the group's last delivery, nobody would get.
            return self._end(record) if verdict == "release" and self._deliveries.is_last(record) else verdict
        if not self._may_retry(record):
            return self._end(record)
        left = lock.ends - asyncio.get_running_loop().time()
        fits = verdict < left - reserve_of(self._locks.seconds)
        return verdict if fits or self._may_renew() else self._end(record)

    def may_run_alone(self, record: Record[Any, Any]) -> bool:
        """Whether a record may run alone here after its batch has failed. So it does if this is its last delivery: it
        may not be to blame, and nobody would get it after a release."""
        lock = lock_of(record)
        return self._may_retry(record) or (lock is not None and lock.is_last)

    def _verdict(self, record: Record[Any, Any], error: Exception, attempts: int) -> QueueVerdict:
        retry, history, now = self._retry, history_of(record), asyncio.get_running_loop().time()
        if not isinstance(retry, RetryPolicy):
            # As in other consumers, the function is not called for waits of the library itself.
            return error.delay if isinstance(error, NotToBlame) else retry(record, error, attempts)
        if isinstance(error, RetryLater) and (isinstance(error, NotToBlame) or not self.count_waits):
            delay = wait_of(retry, history, error, now)
        else:
            delay = delay_of(retry, history, error, attempts, now)
        return self._end(record) if delay is None else delay

    def _end(self, record: Record[Any, Any]) -> QueueVerdict:
        return "release" if self._deliveries.may_fail(record) else "dead_letter"
