"""Acquires records when the workers need more, and gives them to the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from aioparallel.config.options import Options
from aioparallel.engine.run.processor import Processor
from aioparallel.group.run_state import RunState
from aioparallel.group.share_client import Acquired, ShareClient, Unreadable
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.queues.share.keeping import LockKeeper
from aioparallel.queues.share.locks import Lock
from aioparallel.queues.share.sources import ShareSources
from aioparallel.queues.share.throughput import Bounds, Held, Throughput, Wanted, wanted
from aioparallel.records.errors import ClientError
from aioparallel.records.history import history_of
from aioparallel.records.record import TopicPartition

__all__ = ["ON_ITS_WAY", "Acquirer"]

logger = logging.getLogger(__name__)

_FIRST_SIZE: Final = 4_096.0
"""Bytes of a record before any was read."""
_MEMORY: Final = 1_000
"""The weight of older records in the mean size fades over so many records."""
_RECENT: Final = 60.0
"""Seconds for which unreadable offsets are a problem after their last delivery."""
ON_ITS_WAY: Final = 1.0
"""Seconds after which a request that was on its way has usually been answered: brokers let it wait for half a
second."""
_LOOK: Final = 0.05
"""Seconds between two looks for the answers when the run ends."""
_STEPS: Final = 8
"""After one of so many parts of what may be held has begun, it is planned again."""


class Acquirer:
    """Plans, fetches and admits. Make it within the running loop. ``batch_size``: the most records of one call of a
    handler. ``on_acquired()`` is called after each fetch."""

    def __init__(
        self,
        client: ShareClient,
        options: Options,
        state: RunState,
        processor: Processor,
        sources: ShareSources,
        keeper: LockKeeper,
        batch_size: int,
        on_acquired: Callable[[], None],
    ) -> None:
        self._client = client
        self._options = options
        self._state = state
        self._processor = processor
        self._sources = sources
        self._keeper = keeper
        self._batch_size = batch_size
        self._on_acquired = on_acquired
        self._time = asyncio.get_running_loop().time
        self._throughput = Throughput(self._time())
        self._mean_size = _FIRST_SIZE
        self._changed = asyncio.Event()
        self._asked = 0
        """Records that the waiting fetch has requested; 0: none waits."""
        self._excluded: frozenset[TopicPartition] = frozenset()
        self._unreadable: dict[TopicPartition, tuple[float, Unreadable]] = {}
        self.positions: dict[TopicPartition, int] = {}
        """The highest acquired offset of each partition, plus 1."""
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.state = "nothing assigned"
        self.unreadable = 0
        """Offsets that could not be read, counted at each delivery."""
        self.disturbed_at = self._time()
        """When something was acquired, nothing was requested, or the assignment or a pause has changed, the last
        time."""

    @property
    def is_excluding(self) -> bool:
        """Whether nothing is acquired of an assigned partition, because it is paused."""
        return bool(self._excluded)

    @property
    def per_second(self) -> float:
        """How many records have ended per second."""
        scheduler = self._processor.scheduler
        counters = scheduler.counters
        ended = counters.admitted - scheduler.buffered - counters.in_flight - self._keeper.released_unbegun
        return self._throughput.per_second(ended, self._time())

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """The member fetches from these partitions from now on."""
        self.assigned = frozenset(partitions)
        self.disturbed_at = self._time()
        self.exclude()
        self.replan()

    def replan(self) -> None:
        """Plan again, because something has changed: what is held, the assignment, or a pause."""
        self._changed.set()
        if self._asked and not self._asked / 2 <= self._plan().records < self._asked * 2:
            self._client.wake()

    async def run(self) -> None:
        """Fetch until cancelled. Raises the client's errors that must end the run."""
        while True:
            self._changed.clear()
            self.exclude()
            plan = self._plan()
            self.state = plan.state
            self._processor.scheduler.counters.taken_left = self._step
            for source in self._sources.all:
                self._processor.set_no_more_input(source, not plan.records)
            if not plan.records:
                self.disturbed_at = self._time()
                await self._wait()
                continue
            self._asked = plan.records
            try:
                acquired = await self._client.fetch(plan.records)
            finally:
                self._asked = 0
            self._take(acquired)
            await asyncio.sleep(0)  # a fetch that finds something may not suspend: let workers run

    async def _wait(self) -> None:
        """Wait for a change. What a request has brought that was on its way is taken meanwhile, however slow its broker
        is: nobody would see its locks end. So are errors of the group."""
        while True:
            try:
                async with asyncio.timeout(ON_ITS_WAY):
                    await self._changed.wait()
            except TimeoutError:
                self._client.wake()  # so this fetch returns at once, and requests nothing
                self._take(await self._client.fetch(1))
            else:
                return

    async def take_rest(self) -> None:
        """When :meth:`run` was cancelled because the run ends: take what was on its way, and release it a second later.

        Members of a group are often stopped together. What one of them releases at once would be acquired by a request
        of the next one that was on its way, and so on: after a few of them a record would be given up.
        """
        began, acquired = self._time(), list[Acquired]()
        try:
            await asyncio.sleep(0)  # the fetch of run() ends
            while True:
                self._client.wake()  # so this fetch returns at once, and requests nothing
                came = await self._client.fetch(1)
                for one in came:
                    self._lose_earlier(one.partition, [record.offset for record in one.records])
                acquired += came
                if self._time() - began >= ON_ITS_WAY:
                    self._give_back(acquired)
                if not (acquired or self._client.is_fetching):
                    return
                await asyncio.sleep(_LOOK)
        except ClientError:  # the run ends in any case
            return
        finally:
            self._give_back(acquired)

    def _give_back(self, acquired: list[Acquired]) -> None:
        while acquired:
            self._give_back_one(acquired.pop(0))

    def _give_back_one(self, acquired: Acquired) -> None:
        partition = acquired.partition
        _count_deliveries(acquired)
        locks = [Lock(partition, record.offset, record) for record in acquired.records]
        for one in acquired.unreadable:
            locks += [Lock(partition, offset, None) for offset in range(one.first, one.last + 1)]
        for lock in locks:
            lock.ends = acquired.locked_until
            lock.is_last = self._keeper.locks.is_last(lock.record)
            if lock.is_last and self._keeper.has_letters:
                self._keep_last(lock)
            else:
                self._keeper.acknowledgements.release(lock)

    def _keep_last(self, lock: Lock) -> None:
        """Keep a record that came while the run ends, and that nobody would get: it is dead-lettered with those that
        the stop cuts off. It counts as admitted and dropped until then."""
        record = lock.record
        assert record is not None
        record._source = source = self._sources.source_for(lock.partition, [lock.offset])
        scheduler = self._processor.scheduler
        scheduler.stop(source)
        source.locks[lock.offset] = lock
        counters = scheduler.counters
        counters.admitted += 1
        counters.dropped += 1
        source.counts.dropped += 1
        self._keeper.acquired([lock], lock.ends)

    def _take(self, acquired: Sequence[Acquired]) -> None:
        for one in acquired:
            self._admit(one)
        if acquired:
            self.disturbed_at = self._time()
            self._on_acquired()

    @property
    def _at_once(self) -> int:
        return self._state.max_concurrency * self._batch_size

    @property
    def _step(self) -> int:
        return max(1, min(self._at_once, self._options.max_buffered) // _STEPS)

    def _plan(self) -> Wanted:
        if not self._state.may_start:
            return Wanted(0, "paused" if self._state.is_running else "stopped")
        if not self.assigned:
            return Wanted(self._step, "nothing assigned")  # the client reports errors of the group in a fetch
        if self.assigned <= self._excluded:
            return Wanted(0, "paused")
        options, scheduler = self._options, self._processor.scheduler
        held = Held(scheduler.counters.in_flight, scheduler.buffered, scheduler.buffered_bytes, self._mean_size)
        bounds = Bounds(self._at_once, options.max_buffered, options.max_buffered_bytes)
        return wanted(bounds, held, self.per_second, self._client.lock_seconds)

    def exclude(self) -> None:
        """Acquire nothing of partitions that start nothing: that would use up the deliveries of their records. Called
        when a pause begins or ends, and before each fetch."""
        full = {source.partition for source in self._sources.all if source.full}
        state = self._state
        excluded = frozenset(one for one in self.assigned if state.is_paused or one in full or state.pauses.of(one)[0])
        if excluded != self._excluded:
            self._excluded = excluded
            self.disturbed_at = self._time()
            self._client.exclude(excluded)

    def _admit(self, acquired: Acquired) -> None:
        partition, records = acquired.partition, acquired.records
        if acquired.unreadable:
            self._keep_unreadable(acquired)
        if not records:
            return
        self.positions[partition] = max(records[-1].offset + 1, self.positions.get(partition, 0))
        offsets = [record.offset for record in records]
        self._lose_earlier(partition, offsets)
        source = self._sources.source_for(partition, offsets)
        locks = [Lock(partition, offset, record) for offset, record in zip(offsets, records, strict=True)]
        source.locks.update(zip(offsets, locks, strict=True))
        _count_deliveries(acquired)
        before = source.buffered_bytes
        self._processor.admit(source, records)
        self._saw(len(records), source.buffered_bytes - before)
        self._keeper.acquired(locks, acquired.locked_until)
        self._keeper.spare(source, records)
        if source.paused or self._processor.scheduler.paused:  # since the request was sent
            self._keeper.release(lambda of, record: of is source)

    def _lose_earlier(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        if earlier := self._sources.locks_of(partition, offsets):
            # What is acknowledged from now on belongs to this delivery: a failure of an earlier handler would release
            # its lock.
            self._keeper.lose(*earlier, came_again=True)

    def _saw(self, records: int, size: int) -> None:
        self._mean_size += (size / records - self._mean_size) * min(1.0, records / _MEMORY)

    def _keep_unreadable(self, acquired: Acquired) -> None:
        partition = acquired.partition
        for one in acquired.unreadable:
            locks = [Lock(partition, offset, None) for offset in range(one.first, one.last + 1)]
            self.unreadable += len(locks)
            self._unreadable[partition] = self._time(), one
            logger.error(
                "%s. They are released shortly before their lock ends, as another replica may be intact by then. "
                "Records that are not read within the deliveries that the group allows are LOST",
                _text(partition, one),
                extra={
                    "action": "share_unreadable",
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": one.first,
                    "delivery_count": one.delivery_count,
                },
            )
            self._keeper.acquired(locks, acquired.locked_until)

    def problems(self) -> Iterator[Problem]:
        """Yield the partitions in which offsets could not be read recently."""
        now = self._time()
        lock_seconds = self._client.lock_seconds or 0.0
        for partition, (at, one) in self._unreadable.items():
            if now - at < lock_seconds + _RECENT:
                yield Problem(ProblemKind.UNREADABLE, _text(partition, one))


def _count_deliveries(acquired: Acquired) -> None:
    for record, count in zip(acquired.records, acquired.delivery_counts, strict=True):
        if count > 1:
            history_of(record).delivery_count = count


def _text(partition: TopicPartition, one: Unreadable) -> str:
    return (
        f"{partition}: offsets {one.first} to {one.last} cannot be read ({one.reason}), delivery {one.delivery_count}"
    )
