"""Keeps the locks of records that are here: renews them, releases records, cancels handlers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from aioparallel.engine.run.processor import Processor
from aioparallel.engine.sources import Source
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.record_logging import coordinates
from aioparallel.queues.share.acknowledging import Acknowledgements, RareLines
from aioparallel.queues.share.deliveries import Deliveries
from aioparallel.queues.share.locks import DueLocks, Lock, Locks, Stage
from aioparallel.queues.share.sources import lock_of, stage_of
from aioparallel.records.errors import LastDelivery
from aioparallel.records.record import Record

__all__ = ["LockKeeper"]

logger = logging.getLogger(__name__)

_REFUSED: Final = ", and the brokers refuse to renew locks (share.renew.acknowledge.enable)"
_RECENT: Final = 60.0
"""Seconds for which lost locks are a problem."""
_NOT_BEGUN: Final = (Stage.WAITING, Stage.PARKED)


class LockKeeper:
    """Does what the locks need in time. Make it within the running loop.

    ``per_second()``: how many records begin in a second, as measured. ``may_renew()``: as in
    :class:`~aioparallel.queues.share.redelivery.Redelivery`.
    ``acknowledgements`` is set right after.
    """

    acknowledgements: Acknowledgements

    def __init__(
        self,
        locks: Locks,
        processor: Processor,
        per_second: Callable[[], float],
        may_renew: Callable[[], bool],
        deliveries: Deliveries,
    ) -> None:
        self.locks = locks
        self._processor = processor
        self._per_second = per_second
        self._may_renew = may_renew
        self._deliveries = deliveries
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf
        self._recent: deque[float] = deque(maxlen=1_000)
        self.released_unbegun = 0
        """Records that were released before their first attempt."""
        self.lost = 0
        """Records whose lock has ended, or was given up, while their handler ran or their outputs were sent, or just
        before their handler was called."""
        self._missed_lines = RareLines(self._loop.time)

    @property
    def has_letters(self) -> bool:
        """Whether records can be dead-lettered."""
        return self._deliveries.has_letters

    def acquired(self, locks: Collection[Lock], ends: float) -> None:
        """Keep these locks."""
        self.locks.add(locks, ends, self._loop.time())
        self.set_timer()

    def spare(self, source: Source, records: Iterable[Record[Any, Any]]) -> None:
        """Dead-letter those that have just come, and would be lost if this process died with them."""
        if spared := {record for record in records if not self._deliveries.begins(record)}:
            self._processor.dead_letter(source, spared, LastDelivery(begun=False))

    def lose(self, *locks: Lock, came_again: bool = False) -> None:
        """These locks have ended, as an answer of the broker says. ``came_again``: their records are here again."""
        for lock in locks:
            self.locks.remove(lock)
            lock.is_lost = True
            lock.is_last &= not came_again
        self._end_lost(locks)

    def release(self, wanted: Callable[[Source, Record[Any, Any]], bool]) -> None:
        """Release the wanted ones of the records that do not run: they are paused. In their last delivery they stay:
        nobody would get them."""
        idle = self._idle(wanted)
        self._release([lock for lock in idle if not lock.is_last])

    def release_all(self) -> None:
        """Release all records that do not run, because the run ends. In their last delivery they are dead-lettered."""
        self._release(self._idle(lambda source, record: True))

    def _idle(self, wanted: Callable[[Source, Record[Any, Any]], bool]) -> Collection[Lock]:
        self._processor.scheduler.flush_counters()  # a handler may ask, while its own record is not counted yet
        return [lock for lock in self.locks.held() if self._is_idle(lock, wanted)]

    @staticmethod
    def _is_idle(lock: Lock, wanted: Callable[[Source, Record[Any, Any]], bool]) -> bool:
        record = lock.record
        return record is not None and stage_of(lock) in _NOT_BEGUN and wanted(record._source, record)

    def last_ones(self) -> list[Record[Any, Any]]:
        """Return the records that nobody would get, and that are not being dead-lettered."""
        return [lock.record for lock in self.locks.held() if lock.record and lock.is_last and not lock.is_letter]

    def release_rest(self, left: Iterable[Lock]) -> None:
        """Release everything, because the run ends. Outcomes that come later change nothing. ``left``: the locks of all
        records that have not ended. Those that were lost in the last delivery are given up."""
        lost = [lock for lock in left if lock.is_lost and lock.is_last]
        for lock in [*self.locks.held(), *lost]:
            self.acknowledgements.release(lock)

    def close(self) -> None:
        """Do nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def problems(self) -> Iterator[Problem]:
        """Yield a problem if locks were lost recently."""
        now = self._loop.time()
        count = len([at for at in self._recent if now - at < _RECENT])
        if count:
            why = "" if self._may_renew() else _REFUSED
            yield Problem(
                ProblemKind.LOCK_LOST,
                f"{count:,} {'lock has' if count == 1 else 'locks have'} ended within the last minute before their "
                f"handlers{why}; the records are delivered again",
            )

    # -- in time ----------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """Locks were acquired or renewed: look at them in time. The group's lock duration may be a shorter one now."""
        when = self.locks.next_look
        if when is None or when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(when, self._look), when

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._do(self.locks.look(self._loop.time(), self._per_second(), self._may_renew()))
        self.set_timer()

    def _do(self, due: DueLocks) -> None:
        self._end_lost(due.lost)
        self._release(due.release)
        if due.give_up:
            self._note(due.give_up, "is about to end and cannot be renewed")
            self._cancel()
        for lock in due.renew:
            self.acknowledgements.renew(lock)

    def _end_lost(self, locks: Collection[Lock]) -> None:
        # A lock that was given up was noted then.
        begun = [lock for lock in locks if stage_of(lock) in (Stage.RUNNING, Stage.PRODUCING)]
        self._note([lock for lock in begun if not lock.is_given_up], "has ended")
        if begun:
            self._cancel()
        self._release([lock for lock in locks if stage_of(lock) in _NOT_BEGUN])

    def _release(self, locks: Collection[Lock]) -> None:
        """Release locks whose records do not run, or dead-letter what nobody would get. Of lost ones, nothing is
        sent."""
        by_source: dict[Source, list[Record[Any, Any]]] = {}
        letters: set[Record[Any, Any]] = set()
        for lock in locks:
            record = lock.record
            if record is None:
                self.acknowledgements.release(lock)
                continue
            by_source.setdefault(record._source, []).append(record)
            if lock.is_last and self.has_letters:
                letters.add(record)
            elif not record._parks:
                self.released_unbegun += 1
        for source, records in by_source.items():
            if source.stopped:  # they are released with the rest
                continue
            if last := letters.intersection(records):
                self._processor.dead_letter(source, last, LastDelivery())
            if others := set(records) - last:
                self._processor.release(source, others)

    def missed(self, lock: Lock) -> None:
        """A lock has ended before its handler could be called, and it could not be seen in time: the event loop was
        blocked, or the process was frozen."""
        self._count([lock])
        more, record = self._missed_lines.more(), lock.record
        assert record is not None
        if more is not None:
            logger.warning(
                "%s: its lock had ended before its handler could be called, because the event loop was blocked or the "
                "process frozen: it is delivered again%s",
                record.place,
                more,
                extra={"action": "lock_lost", "locks": 1, **coordinates(record)},
            )

    def _count(self, locks: Collection[Lock]) -> None:
        self.lost += len(locks)
        self._recent.extend([self._loop.time()] * len(locks))

    def _note(self, locks: Collection[Lock], what: str) -> None:
        if not locks:
            return
        self._count(locks)
        record = min(locks, key=lambda lock: lock.number).record
        assert record is not None
        logger.warning(
            "%s: its lock %s while its handler ran or its outputs were sent%s: handlers that run are cancelled, and "
            "the records are delivered again",
            record.place,
            what,
            f", and {len(locks) - 1:,} more" if len(locks) > 1 else "",
            extra={"action": "lock_lost", "locks": len(locks), **coordinates(record)},
        )

    def _cancel(self) -> None:
        self._processor.pool.lose(_is_gone)


def _is_gone(record: Record[Any, Any]) -> bool:
    lock = lock_of(record)
    return lock is not None and (lock.is_lost or lock.is_given_up)
