"""Scheduler, workers and retry timer together: all that is needed to run records, from wherever they come.

A Kafka partition feeds it through the fetcher; a test, or a task of another engine, through :func:`process`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aioparallel.engine.retries import RetryQueue
from aioparallel.engine.scheduler import Scheduler
from aioparallel.engine.session import Session, SessionState
from aioparallel.engine.workers import Handler, WorkerPool
from aioparallel.options import Options
from aioparallel.records import Record, TopicPartition

__all__ = ["Processor", "process"]

logger = logging.getLogger(__name__)


class _DrainWait(NamedTuple):
    sessions: Sequence[Session]
    done: asyncio.Future[None]


class Processor:
    """Runs admitted records under the options' order and bounds, retrying failed ones for ever.

    ``on_fatal(error)`` hears what must end everything; ``on_idle()`` that a worker found nothing to do.
    """

    def __init__(
        self,
        handler: Handler,
        options: Options,
        *,
        on_fatal: Callable[[BaseException], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.scheduler = Scheduler(options.ordering, options.order_by)
        self._retry_delay = options.retry_delay
        self._retries = RetryQueue()
        self._timer: asyncio.TimerHandle | None = None
        # A rebalance and a close may drain the same sessions at once: each has its own wait.
        self._drains: list[_DrainWait] = []
        self.scheduler.on_drained = self._look_at_drains
        self._pool = WorkerPool(
            self.scheduler,
            handler,
            options.max_concurrency,
            on_failed=self._failed,
            on_fatal=on_fatal,
            on_idle=on_idle,
            task_per_record=options.isolation == "task",
        )

    def admit(self, session: Session, records: Sequence[Record], next_offset: int) -> None:
        """Take what was read of a partition: ``records`` ascending by offset, and the position after them.

        Registers them in the session's ledger, drops what the restored offset map says is done, and
        schedules the rest.
        """
        offsets = [record.offset for record in records]
        wanted = session.ledger.register(offsets, next_offset)
        if len(wanted) != len(records):
            chosen = set(wanted)
            records = [record for record in records if record.offset in chosen]
        if records:
            self.scheduler.admit(session, records)
            self._pool.notify()

    def notify(self) -> None:
        """Something may have become ready: let a worker look."""
        if self.scheduler.ready and not self.scheduler.paused:
            self._pool.notify()

    @property
    def unfinished(self) -> int:
        """Records admitted and not ended."""
        scheduler = self.scheduler
        return len(scheduler.in_flight) + scheduler.buffered + scheduler.parked

    async def drain(self, sessions: Sequence[Session], seconds: float, cancel_grace: float) -> None:
        """Start nothing more of these sessions and wait for what is in flight.

        After ``seconds`` the handlers still running are cancelled, and get ``cancel_grace`` seconds to end.
        """
        for session in sessions:
            if session.state in (SessionState.OPENING, SessionState.OPEN):
                session.state = SessionState.DRAINING
        if seconds > 0 and await self._drained(sessions, seconds):
            return
        if self.cancel(sessions):
            await self._drained(sessions, cancel_grace)

    def cancel(self, sessions: Sequence[Session]) -> int:
        """Cancel the handlers in flight of these sessions. Returns how many."""
        wanted = set(sessions)
        return self._pool.cancel(lambda record: record._lane.session in wanted)

    async def _drained(self, sessions: Sequence[Session], seconds: float) -> bool:
        for session in sessions:
            self.scheduler.stop(session)
        wait = _DrainWait(sessions, asyncio.get_running_loop().create_future())
        self._drains.append(wait)
        self._look_at_drains()
        try:
            await asyncio.wait([wait.done], timeout=seconds)
        finally:
            self._drains.remove(wait)
        return wait.done.done()

    def _look_at_drains(self) -> None:
        for wait in self._drains:
            if not wait.done.done() and not any(s.draining and s.current for s in wait.sessions):
                wait.done.set_result(None)

    async def close(self, timeout: float) -> None:
        """End the workers; names the handlers that do not end within ``timeout`` seconds."""
        if self._timer is not None:
            self._timer.cancel()
        for record in await self._pool.close(timeout):
            logger.warning(
                "handler for %s offset %d did not end after it was cancelled; it is left behind",
                record.topic_partition,
                record.offset,
                extra={"action": "handler_abandoned", "offset": record.offset},
            )

    # -- retries ----------------------------------------------------------------------------------------

    def _failed(self, record: Record, error: BaseException) -> None:
        if not self.scheduler.park(record):
            return
        logger.warning(
            "handler failed for %s offset %d (attempt %d): %r; next attempt in %g s",
            record.topic_partition,
            record.offset,
            record.attempt - 1,
            error,
            self._retry_delay,
            exc_info=error if record.attempt == 2 else None,
            extra={"action": "handler_failed", "offset": record.offset, "attempt": record.attempt - 1},
        )
        self._retries.add(record, asyncio.get_running_loop().time() + self._retry_delay)
        self._set_timer()

    def _set_timer(self) -> None:
        when = self._retries.next_time
        if when is None or (self._timer is not None and self._timer.when() <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._unpark_due)

    def _unpark_due(self) -> None:
        self._timer = None
        # A timer may fire within the clock's resolution before its time; half a millisecond early is on time.
        for record in self._retries.due(asyncio.get_running_loop().time() + 0.0005):
            self.scheduler.unpark(record)
        self._set_timer()
        self.notify()


async def process(
    records: Iterable[Record], handler: Handler, options: Options | None = None, *, chunk: int = 100
) -> None:
    """Run ``handler`` on every record of an iterable, in the order and within the bounds of ``options``.

    Reads ``chunk`` records at a time, only while fewer than ``max_buffered`` wait. Offsets must ascend within
    each partition. Returns when every record has succeeded; failed ones are retried after ``retry_delay``.
    Raises what ended it otherwise (KeyboardInterrupt, SystemExit).
    """
    options = options or Options()
    turn = asyncio.Event()
    fatal: list[BaseException] = []

    def end(error: BaseException) -> None:
        processor.scheduler.paused = True
        fatal.append(error)
        turn.set()

    processor = Processor(handler, options, on_fatal=end, on_idle=turn.set)
    processor.scheduler.on_taken = turn.set
    sessions: dict[TopicPartition, Session] = {}
    source = iter(records)
    exhausted = False
    try:
        while not fatal and not (exhausted and not processor.unfinished):
            room = options.max_buffered - processor.scheduler.buffered
            if not exhausted and room > 0:
                exhausted = not _feed(processor, sessions, source, min(chunk, room))
                await asyncio.sleep(0)
                continue
            processor.scheduler.taken_left = 1
            turn.clear()
            await turn.wait()
    finally:
        await processor.close(timeout=options.drain_timeout)
    if fatal:
        raise fatal[0]


def _feed(processor: Processor, sessions: dict[TopicPartition, Session], source: Iterable[Record], count: int) -> bool:
    """Admit up to ``count`` records; False when the source has ended."""
    taken: dict[TopicPartition, list[Record]] = {}
    ended = True
    for record in source:
        taken.setdefault(record.topic_partition, []).append(record)
        count -= 1
        if not count:
            ended = False
            break
    for partition, batch in taken.items():
        session = sessions.get(partition)
        if session is None:
            session = sessions[partition] = Session(partition, base=batch[0].offset)
            session.state = SessionState.OPEN
        processor.admit(session, batch, batch[-1].offset + 1)
    return not ended
