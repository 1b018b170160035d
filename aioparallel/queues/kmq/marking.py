"""Start markers: written for what was read, before the engine has it. From their acknowledgement on the marker answers
for the record, so its offset is complete, and whoever has it goes on with it when the partition goes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.engine.run.processor import Processor
from aioparallel.group.sessions import Session
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.queues.kmq.end_markers import EndMarkers
from aioparallel.queues.kmq.leases import Lease, Leased, LeaseFailed, check_seconds
from aioparallel.queues.kmq.markers import output_of, start_of
from aioparallel.queues.kmq.renewing import Renewal, Renewing
from aioparallel.records.errors import ConsumerStateError, ProduceFailed
from aioparallel.records.history import refuse_undecodable
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition
from aioparallel.records.user_errors import RAISED, refuse_coroutine

__all__ = ["Marking"]

logger = logging.getLogger(__name__)

# Seconds until start markers are tried again that could not be written.
_PAUSE: Final = 1.0
# Seconds between looks at what is left while a run ends.
_LOOK: Final = 0.02
# The lease of a record whose own one could not be told.
_OTHERWISE: Final = 30.0


class _Portion:
    """Records of one fetch of one partition, while their start markers are on their way."""

    __slots__ = ("failed", "failure", "left", "records", "seconds", "session", "size", "until")

    def __init__(self, session: Session, records: Sequence[Record[Any, Any]], size: int) -> None:
        self.session = session
        self.records = records
        self.size = size
        self.seconds: list[float] = []
        self.until: list[float] = []
        self.failed: dict[int, LeaseFailed] = {}
        self.left = 0
        self.failure: ProduceFailed | None = None


class _StartMarker(PendingOutput):
    __slots__ = ("_marking", "_portion")

    def __init__(self, output: Outgoing, portion: _Portion, marking: Marking) -> None:
        super().__init__(output)
        self._portion = portion
        self._marking = marking

    def placed(self, place: Produced) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._answered()

    def failed(self, failure: ProduceFailed) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._portion.failure = failure
        self._answered()

    def _answered(self) -> None:
        portion = self._portion
        portion.left -= 1
        if not portion.left:
            self._marking.acknowledged(portion)


class _Extension(PendingOutput):
    __slots__ = ("_done",)

    def __init__(self, output: Outgoing, done: asyncio.Future[None]) -> None:
        super().__init__(output)
        self._done = done

    def placed(self, place: Produced) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        if not self._done.done():
            self._done.set_result(None)

    def failed(self, failure: ProduceFailed) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        if not self._done.done():
            self._done.set_exception(failure)


class Marking:
    """An :class:`~aioparallel.group.admission.Admission` through start markers. ``fatal`` hears of what must end the
    run. ``prepare`` is called with each record before a function ``lease``. ``max_leases``: so many leases a record is
    kept that waits for its handler. Made within the running loop."""

    def __init__(
        self,
        processor: Processor,
        fatal: Callable[[BaseException], None],
        producer: Producer,
        topic: str,
        lease: Lease,
        prepare: Callable[[Record[Any, Any]], None],
        max_leases: float,
    ) -> None:
        self._processor = processor
        self._fatal = fatal
        self._producer = producer
        self._topic = topic
        self._lease = lease
        self._prepare = prepare
        self._max_leases = max_leases
        self._loop = asyncio.get_running_loop()
        self._sources: dict[TopicPartition, Leased] = {}
        self.ends = EndMarkers(producer, topic)
        """Of all of them."""
        self._on_way: Counter[Session] = Counter()  # portions
        self._records = self._size = 0  # of these portions
        self._retries: set[asyncio.TimerHandle] = set()
        self._renewing = Renewing(self._sources.values, self._renew, lambda: not processor.scheduler.paused)
        self._unmarked: dict[TopicPartition, str] = {}  # why, as of their last try
        self._ended: set[asyncio.Future[None]] = set()  # of those who wait until nothing is on its way

    # -- in ---------------------------------------------------------------------------------------------

    def admit(self, session: Session, records: Sequence[Record[Any, Any]]) -> int:
        """See :class:`~aioparallel.group.admission.Admission`."""
        if not records:
            return 0
        size = sum([record._size for record in records])
        portion = _Portion(session, records, size)
        self._records += len(records)
        self._size += size
        self._on_way[session] += 1
        self._mark(portion)
        return size

    def _mark(self, portion: _Portion) -> None:
        partition = portion.session.partition.partition
        now, lease, send = self._loop.time(), self._lease, self._producer.send_one
        portion.failure, portion.left = None, len(portion.records)
        if callable(lease):
            portion.seconds = [self._told(lease, record, portion) for record in portion.records]
            values = [start_of(int(seconds * 1_000)) for seconds in portion.seconds]
            portion.until = [now + seconds for seconds in portion.seconds]
        else:
            portion.seconds = [lease] * portion.left
            values = [start_of(int(lease * 1_000))] * portion.left
            portion.until = [now + lease] * portion.left
        for record, value in zip(portion.records, values, strict=True):
            send(_StartMarker(output_of(self._topic, partition, record.offset, value), portion, self))

    def _told(self, lease: Callable[[Record[Any, Any]], float], record: Record[Any, Any], portion: _Portion) -> float:
        """What the function says. Where it fails the record does, once its turn has come, and no other."""
        try:
            refuse_undecodable(record)
            self._prepare(record)
            seconds = lease(record)
            refuse_coroutine(seconds)
            check_seconds("lease", seconds)
        except RAISED as error:
            portion.failed[record.offset] = LeaseFailed(error)
            return _OTHERWISE
        return seconds

    def acknowledged(self, portion: _Portion) -> None:
        """All start markers of these have been written, or not."""
        session, failure = portion.session, portion.failure
        if failure is not None:
            self._unmarked[session.partition] = f"{len(portion.records)} records of {session.partition}: {failure}"
        elif self._unmarked:
            self._unmarked.pop(session.partition, None)
        if not session.current:
            self._forget(portion)  # nothing of this was committed: the partition's next owner reads it
        elif failure is None:
            self._admit(portion)
        elif failure.passing:
            logger.warning(
                "start markers of %d records of %s could not be written (%s); they are tried again",
                len(portion.records),
                session.partition,
                failure,
                extra={"action": "start_markers_retry"},
            )
            self._later(portion)
        else:
            self._fatal(failure)
            self._forget(portion)

    def _admit(self, portion: _Portion) -> None:
        session = portion.session
        self._leave(portion)
        offsets = [record.offset for record in portion.records]
        source = self._sources.get(session.partition)
        if source is None:
            source = self._sources[session.partition] = Leased(
                session.partition, self.ends, self._renew, self._renewing.wait
            )
        source.leases.update(zip(offsets, portion.until, strict=True))
        source.seconds.update(zip(offsets, portion.seconds, strict=True))
        now, max_leases = self._loop.time(), self._max_leases
        waits = [(seconds, now + max_leases * seconds) for seconds in portion.seconds]
        source.waiting.update(zip(offsets, waits, strict=True))
        self._renewing.wait(min(portion.seconds))
        source.failed.update(portion.failed)
        session.complete_all(offsets)
        self._processor.admit(source, portion.records)

    def _forget(self, portion: _Portion) -> None:
        """None of it runs here. Its room is free, and who looks for the end waits for it no more: no worker tells."""
        self._leave(portion)
        signals = self._processor.scheduler.counters.signals
        signals.taken()
        signals.idle()

    def _leave(self, portion: _Portion) -> None:
        session = portion.session
        self._on_way[session] -= 1
        if not self._on_way[session]:
            del self._on_way[session]
        self._records -= len(portion.records)
        self._size -= portion.size
        for waiter in self._ended:
            if not waiter.done():
                waiter.set_result(None)

    def _later(self, portion: _Portion) -> None:
        def again() -> None:
            self._retries.discard(timer)
            if portion.session.current:
                self._mark(portion)
            else:
                self._forget(portion)

        timer = self._loop.call_later(_PAUSE, again)
        self._retries.add(timer)

    # -- leases -----------------------------------------------------------------------------------------

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """Write a further start marker: from now on the lease ends in so many seconds. Raises ProduceFailed where that
        is not known to be written, ConsumerStateError where the record has none."""
        source = getattr(record, "_source", None)  # none of a record that was never read
        if not isinstance(source, Leased) or record.offset not in source.leases:
            raise ConsumerStateError(f"{record.place} has no lease here that could be extended")
        until = self._loop.time() + seconds
        done: asyncio.Future[None] = self._loop.create_future()
        output = output_of(self._topic, source.partition, record.offset, start_of(int(seconds * 1_000)))
        self._producer.send_one(_Extension(output, done))
        await done
        if record.offset in source.leases:
            source.leases[record.offset] = until

    def _renew(self, source: Leased, offset: int, seconds: float) -> None:
        """A further start marker, which nobody waits for: without it the lease ends as it would have."""
        output = output_of(self._topic, source.partition, offset, start_of(int(seconds * 1_000)))
        self._producer.send_one(Renewal(output, source, offset, self._loop.time() + seconds))

    # -- out --------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[int, int]:
        """See :class:`~aioparallel.group.admission.Admission`."""
        sources = self._sources.values()
        return (
            self._records + sum([source.buffered for source in sources]),
            self._size + sum([source.buffered_bytes for source in sources]),
        )

    def problems(self, held: Collection[TopicPartition]) -> list[Problem]:
        """Partitions, of these, whose records do not run, because their start markers cannot be written."""
        return [
            Problem(ProblemKind.NOT_MARKED, f"no start markers for {said}; they do not run")
            for partition, said in self._unmarked.items()
            if partition in held
        ]

    @property
    def is_idle(self) -> bool:
        """See :class:`~aioparallel.group.admission.Admission`."""
        return not self._records and not self._processor.scheduler.unfinished

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """See :class:`~aioparallel.group.admission.Admission`: handlers go on, their markers answer for them."""
        ends = self._loop.time() + seconds
        # First of all: what is read from now on is the next owner's, and would be waited for here.
        await self._processor.drain(list(sessions), 0, 0)
        while any(self._on_way[session] for session in sessions) and (left := ends - self._loop.time()) > 0:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._ended.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._ended.discard(waiter)

    async def drain(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """See :class:`~aioparallel.group.admission.Admission`. What was read ahead runs too, as far as there is time:
        it would be delivered again only when its lease is over. What waits for longer is left to others."""
        began, scheduler = self._loop.time(), self._processor.scheduler
        await self.settle(sessions, seconds, cancel_grace)
        try:
            while scheduler.unfinished and self._loop.time() - began < seconds:
                if self._processor.only_waits(began + seconds):
                    break
                scheduler.resume()  # and again: whoever stops once more has paused it
                self._processor.notify()
                await asyncio.sleep(_LOOK)
        finally:
            scheduler.pause()
            self._renewing.close()
            for timer in self._retries:
                timer.cancel()
        left = max(0.0, seconds - (self._loop.time() - began))
        await self._processor.drain(list(self._sources.values()), left, cancel_grace)
