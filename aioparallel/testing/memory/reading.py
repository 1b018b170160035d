"""One client's positions in the logs, what it reads there, and how it waits for more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from aioparallel.group.client import Fetched
from aioparallel.records.errors import ClientError, FetchFailed, NotAuthorized, OffsetOutOfRange, UnreadableBatch
from aioparallel.records.history import make_undecodable
from aioparallel.records.record import Record, TopicPartition, raw_name
from aioparallel.testing.memory.broker import InMemoryBroker

__all__ = ["Reading"]


class Reading:
    """The positions of one client. :meth:`take` is synchronous; the coroutine only waits."""

    def __init__(self, broker: InMemoryBroker, *, read_committed: bool) -> None:
        self.ends_seen: dict[TopicPartition, int] = {}
        self._broker = broker
        self._read_committed = read_committed
        self._positions: dict[TopicPartition, int] = {}
        # Last known topic id and leader epoch of each log.
        self._leaders: dict[TopicPartition, tuple[bytes, int]] = {}
        self._turn = 0
        # A partition whose error was deferred because other partitions had records. The next take checks it first, so
        # that endless records elsewhere cannot hide the error.
        self._blocked: TopicPartition | None = None
        self.is_woken = False
        self._waiters: dict[asyncio.Future[None], Mapping[TopicPartition, int]] = {}

    # -- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position to ``offset``."""
        self._positions[partition] = offset
        if (log := self._broker.log(partition)) is not None:
            self._leaders.setdefault(partition, (self._broker.topic_id(partition.topic), log.leader_epoch))
        self.look_at(partition)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the positions of these partitions."""
        for partition in partitions:
            self._positions.pop(partition, None)
            self._leaders.pop(partition, None)
            self.ends_seen.pop(partition, None)

    def look_at_end(self, partition: TopicPartition) -> bool:
        """Update the known end of this log, if it is read and reachable. Returns whether it was updated."""
        log = self._broker.log(partition) if self._broker.is_reachable and partition in self._positions else None
        if log is not None:
            self.ends_seen[partition] = log.readable_end(read_committed=self._read_committed)
        return log is not None

    # -- taking

    def take(self, quotas: Mapping[TopicPartition, int], most: int, held: AbstractSet[TopicPartition]) -> list[Fetched]:
        """Take at most ``quotas[p]`` records of each partition ``p`` in ``held``, and ``most`` in total, in one walk.

        Raises the error of a partition once the other partitions have no records.
        """
        asked = [p for p in self._in_turn(quotas) if quotas[p] > 0 and p in held and p in self._positions]
        blocked, self._blocked = self._blocked, None
        if blocked in asked and (obstacle := self._obstacle(blocked)):
            raise obstacle
        taken: list[Fetched] = []
        first_obstacle: ClientError | None = None
        for partition in asked:
            if obstacle := self._obstacle(partition):
                self._blocked, first_obstacle = partition, first_obstacle or obstacle
            elif most > 0 and (fetched := self._take_from(partition, min(quotas[partition], most))):
                taken.append(fetched)
                most -= len(fetched.records)
        if first_obstacle is not None and not taken:
            raise first_obstacle
        return taken

    def _obstacle(self, partition: TopicPartition) -> ClientError | None:
        position = self._positions[partition]
        if self._broker.is_denied(partition.topic):
            return NotAuthorized(f"topic {partition.topic!r}")
        log = self._broker.log(partition)
        if log is not None and not log.holds(position):
            return OffsetOutOfRange(partition, position)
        damage = self._broker.unreadable_at(partition, position)
        if damage is None or position < damage[0]:
            return None
        why = "corrupt() has damaged it"
        if damage[1] is None:
            return FetchFailed(partition, position, why)
        return UnreadableBatch(partition, position, *damage, why)

    def _in_turn(self, quotas: Mapping[TopicPartition, int]) -> Iterable[TopicPartition]:
        """The partitions, each time starting with the next one."""
        if not quotas:
            return ()
        self._turn = (self._turn + 1) % len(quotas)
        order = tuple(quotas)
        return order[self._turn :] + order[: self._turn]

    def _take_from(self, partition: TopicPartition, quota: int) -> Fetched | None:
        position = self._positions[partition]
        log = self._broker.log(partition)
        if log is None:
            return None  # deleted; real clients wait until it exists again
        self.ends_seen[partition] = log.readable_end(read_committed=self._read_committed)
        stored, next_offset = log.read(position, quota, read_committed=self._read_committed)
        damage = self._broker.unreadable_at(partition, position)
        if damage is not None and damage[0] < next_offset:
            stored, next_offset = [s for s in stored if s.offset < damage[0]], damage[0]
        topic_id = self._broker.topic_id(partition.topic)
        if next_offset == position:
            now = topic_id, log.leader_epoch
            if self._leaders.get(partition, now) == now:
                return None
            self._leaders[partition] = now
            return Fetched(partition, [], position, topic_id=topic_id, leader_changed=True)
        self._positions[partition] = next_offset
        topic, number = partition
        records = [Record(topic, number, s.offset, s.key, s.value, s.headers, s.timestamp) for s in stored]
        if log.has_raw_names:
            for record in records:
                for name, _ in record.headers:
                    if (raw := raw_name(name)) is not None:
                        make_undecodable(record, f"the name of a header is not UTF-8: {raw!r}")
        return Fetched(partition, records, next_offset, log.epochs_of(position, next_offset), topic_id)

    # -- waiting

    async def wait(self, quotas: Mapping[TopicPartition, int], seconds: float | None = None) -> None:
        """Wait until one of these partitions may have changed, for :meth:`wake`, or up to ``seconds``."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = quotas
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            del self._waiters[waiter]

    def look_at(self, partition: TopicPartition) -> None:
        """Wake those who wait for this partition."""
        for waiter, quotas in self._waiters.items():
            if partition in quotas:
                _resolve(waiter)

    def look_again(self) -> None:
        """Wake all."""
        for waiter in self._waiters:
            _resolve(waiter)

    def wake(self) -> None:
        """Let the waiting fetch return, or the next one if none is waiting."""
        self.is_woken = True
        self.look_again()

    def consume_wake(self) -> bool:
        """Whether :meth:`wake` was called since the last call."""
        woken, self.is_woken = self.is_woken, False
        return woken


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
