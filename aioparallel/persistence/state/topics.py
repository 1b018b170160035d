"""The two topics of a state. What belongs to partition *n* of a topic stands in partition *n* of both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from aioparallel.config.state import State
from aioparallel.group.client import Client, Committed, Fetched, Span
from aioparallel.persistence.state.increments import (
    Increment,
    Named,
    Place,
    begins_of_increment,
    decode_increment,
    decode_part,
    decode_part_key,
    decode_place,
)
from aioparallel.persistence.state.unapplied import read_unapplied
from aioparallel.records.errors import ConfigurationError, FetchFailed, StateNotRestored
from aioparallel.records.record import Record, TopicPartition

__all__ = ["StateTopics", "TopicNames"]

_Ask = Callable[[Collection[TopicPartition], float], Awaitable[Mapping[TopicPartition, int]]]

_CONNECTING: Final = 5.0
"""Seconds that a look waits for its first records, for which it connects first."""
_ALL: Final = 2.0
"""Seconds in which all partitions should be told of in one answer."""
_FAR: Final = 64_000
_NEAR: Final = 64
"""Records of others between an increment and its parts, most often."""
_FIRST_LOOK: Final = 1_000
"""Offsets at the end of a partition in which its last increments most often stand; then eight times as many before."""


_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for a topic."""


class TopicNames(NamedTuple):
    """Where a group's state is."""

    increments: str
    snapshots: str

    @classmethod
    def of(cls, policy: State[object], group_id: str) -> TopicNames:
        """As the policy says, or by the group's id. Raises ConfigurationError."""
        found = cls(policy.topic or f"{group_id}-state", policy.snapshots or f"{group_id}-snapshots")
        for option, given, name in zip(("topic", "snapshots"), (policy.topic, policy.snapshots), found, strict=True):
            if not _NAME.fullmatch(name):
                source = "" if given else f", which is made of the group's name {group_id!r}"
                raise ConfigurationError(
                    f"State {option}",
                    name,
                    f"is no name of a topic{source}: give State({option}=...) one of at most 249 ASCII letters, "
                    "digits, '.', '_' and '-'",
                )
        if found.increments == found.snapshots:
            raise ConfigurationError("State snapshots", found.snapshots, "must be another topic than the increments'")
        return found


class StateTopics:
    """Reads them, for one group."""

    def __init__(self, names: TopicNames, group_id: str, client: Client) -> None:
        self.names = names
        self.group_id = group_id
        self.client = client
        self._partitions = dict.fromkeys(names, 0)
        self._are_logs: set[str] = set()  # topics that are read, and keep each record

    # -- what they must be ------------------------------------------------------------------------------

    async def check(self, read: Collection[TopicPartition], timeout: float) -> None:
        """Whether they can hold the state of these partitions, and these what it is made of. Raises
        ConfigurationError."""
        await self.check_partitions(read, timeout)
        for name in self.names:
            policy = await self.client.cleanup_policy(name, timeout)
            if policy is not None and policy != "compact":
                raise ConfigurationError(
                    "State topic",
                    name,
                    f"must be compacted, and its cleanup.policy is {policy}: it would grow with every commit, or lose "
                    f"the state. kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config "
                    "cleanup.policy=compact --bootstrap-server ...",
                )

    async def check_partitions(self, read: Collection[TopicPartition], timeout: float) -> None:
        """The same of partitions that may have come up since."""
        largest = max((partition.partition for partition in read), default=-1)
        if largest >= min(self._partitions.values()):
            await self._count(largest, timeout)
        for topic in {partition.topic for partition in read} - self._are_logs:
            policy = await self.client.cleanup_policy(topic, timeout)
            if policy is not None and "compact" in policy:
                raise ConfigurationError(
                    "topics",
                    topic,
                    f"cannot have a state: its cleanup.policy is {policy}, which removes records that the state is "
                    "made of",
                )
            self._are_logs.add(topic)

    async def _count(self, largest: int, timeout: float) -> None:
        found = await self.client.partitions(self.names, timeout)
        for name in self.names:
            count = len([partition for partition in found if partition.topic == name])
            self._partitions[name] = count
            if count > largest:
                continue
            make = "--alter" if count else "--create --config cleanup.policy=compact"
            has = f"has {count} partitions" if count else "does not exist"
            raise ConfigurationError(
                "State topic",
                name,
                f"{has}, and a topic that is read has {largest + 1}: the state of a partition stands in the one of its "
                f"number. kafka-topics.sh {make} --topic {name} --partitions {largest + 1} --bootstrap-server ... "
                f"(the two topics of the state are {self.names.increments} and {self.names.snapshots}; "
                "State(topic=, snapshots=) name others)",
            )

    # -- increments -------------------------------------------------------------------------------------

    async def last_increments(
        self, positions: Mapping[TopicPartition, Committed], timeout: float, idle_timeout: float
    ) -> Mapping[TopicPartition, Increment | ValueError | None]:
        """Of each of these the newest that is of its position, else the last one, or None where there is none; or why
        it cannot be read. A former owner's may come late, and stand behind its successor's; those of a life that is
        over do not count.

        Not in the result: one that may be there, and cannot be seen yet, since a transaction is open before it, or its
        broker does not tell where they end, or says nothing for ``idle_timeout`` seconds. Raises StateNotRestored where
        a record cannot be read, TimeoutError, ClientError.
        """
        places = {self._place_of(partition) for partition in positions}
        limit = min(timeout, max(_ALL, idle_timeout))
        begins = await _told(self.client.beginning_offsets, places, limit)
        # The increment of a position was written before it was committed, so it is before these ends.
        ends = await _told(self.client.written_end_offsets, places, limit)
        found = {partition: _Newest(committed) for partition, committed in positions.items()}
        unseen = {place for place in places if place not in begins or place not in ends}
        look = _FIRST_LOOK
        while True:
            # Where there are some, and none is of the position, it is likely that none is: somebody has moved that.
            is_far = look > _FAR
            missing = {
                partition: one
                for partition, one in found.items()
                if one.right is None
                and not (is_far and one.found is not None)
                and self._place_of(partition) not in unseen
            }
            spans = {}
            for place in {self._place_of(partition) for partition in missing}:
                first, end = begins[place], ends[place]
                if first < end:
                    spans[place] = Span(max(first, end - look), end)
                    ends[place] = spans[place].start
            if not spans:
                break
            try:
                unseen |= await self._look_in(spans, idle_timeout, missing)
            except FetchFailed as error:
                raise self._unreadable(error, missing) from error
            look *= 8
        seen = {partition: one for partition, one in found.items() if self._place_of(partition) not in unseen}
        return {partition: one.found for partition, one in seen.items()}

    def _unreadable(self, error: FetchFailed, wanted: Collection[TopicPartition]) -> StateNotRestored:
        """Not passed: it may be the increment that counts, and another one of its position would be wrong."""
        place, after = error.partition, error.offset + 1
        return StateNotRestored(
            min(partition for partition in wanted if self._place_of(partition) == place),
            f"{error}. This may be the increment that says what is in the state, so none is taken in its place, and "
            "whatever else has its state in that partition is held up as well. Let a replica lead that can read it. Or "
            f"delete what is there up to it: kafka-delete-records.sh, offset {after} of {place}, while that topic has "
            "cleanup.policy=[compact,delete] and retention.ms=-1. A state whose increments are then gone is made of "
            "the whole log, also of records that were put away; all others are as they were",
        )

    def _place_of(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(self.names.increments, partition.partition)

    async def _look_in(
        self, spans: Mapping[TopicPartition, Span], idle_timeout: float, wanted: Mapping[TopicPartition, _Newest]
    ) -> set[TopicPartition]:
        """Show each what stands there. Those places that were not seen to the end."""
        unseen = set(spans)
        waits = max(idle_timeout, _CONNECTING)
        async with aclosing(self.client.read(spans)) as reads:
            while unseen:
                try:
                    async with asyncio.timeout(waits):
                        fetched = await anext(reads)
                except TimeoutError:
                    break
                waits = idle_timeout
                if fetched.next_offset >= spans[fetched.partition].end:
                    unseen.discard(fetched.partition)
                for record in fetched.records:
                    place = decode_place(record.key)
                    if place is not None and place.group_id == self.group_id and place.partition in wanted:
                        wanted[place.partition].see(place.life, record)
        return unseen

    async def unapplied_of(self, partition: TopicPartition, increment: Increment, timeout: float) -> Collection[int]:
        """The offsets that it says are not in the state: its own, or those of its parts, which stand before it, among
        what others have written. Raises ValueError where one of them is not there, or cannot be read; StateNotRestored,
        TimeoutError, ClientError."""
        if increment.parts is None:
            return read_unapplied(increment.unapplied)
        place = self._place_of(partition)
        begins = (await self.client.beginning_offsets([place], timeout)).get(place)
        if begins is None:
            raise TimeoutError
        found: dict[int, Collection[int]] = {}
        end, look = increment.offset, increment.parts.number + _NEAR
        while len(found) < increment.parts.number and begins < end:
            start = max(begins, end - look)
            try:
                async with aclosing(self.client.read({place: Span(start, end)})) as reads:
                    async for fetched in reads:
                        self._take_parts(fetched.records, partition, increment, found)
            except FetchFailed as error:
                raise self._unreadable(error, [partition]) from error
            end, look = start, look * 8
        if len(found) < increment.parts.number:
            raise ValueError(f"only {len(found)} of its {increment.parts.number} parts are there")
        return set().union(*found.values())

    def _take_parts(
        self,
        records: Sequence[Record],
        partition: TopicPartition,
        increment: Increment,
        found: dict[int, Collection[int]],
    ) -> None:
        assert increment.parts is not None
        for record in records:
            match decode_part_key(record.key):
                case (Place(self.group_id, where, _), number) if where == partition:
                    if (offsets := decode_part(record.value, increment.parts)) is not None:
                        found[number] = offsets

    async def increments_end(self, partition: TopicPartition, timeout: float) -> int:
        """Where its increments end. Raises TimeoutError, ClientError."""
        return await self._end_of(self.names.increments, partition, timeout)

    async def snapshots_end(self, partition: TopicPartition, timeout: float) -> int:
        """Where its full snapshots end. Raises TimeoutError, ClientError."""
        return await self._end_of(self.names.snapshots, partition, timeout)

    async def _end_of(self, topic: str, partition: TopicPartition, timeout: float) -> int:
        place = TopicPartition(topic, partition.partition)
        found = await self.client.written_end_offsets([place], timeout)
        if place not in found:
            raise TimeoutError
        return found[place]

    def read_snapshot(self, partition: TopicPartition, named: Named) -> AsyncGenerator[Fetched, None]:
        """What stands where a full snapshot is."""
        place = TopicPartition(self.names.snapshots, partition.partition)
        return self.client.read({place: Span(named.first, named.next)})


class _Newest:
    """Of the increments of one partition that were seen: the newest of its position, and the last one."""

    def __init__(self, committed: Committed) -> None:
        self._begins = begins_of_increment(committed)
        self._life = -1
        self._last: Record | None = None
        self.right: Increment | ValueError | None = None

    def see(self, life: int, record: Record) -> None:
        """One more, in any order of the log."""
        value = record.value
        # Nothing was written before its life had begun: else the topic was made anew meanwhile.
        life = min(life, record.offset)
        if value is None or life < self._life:
            return
        if life > self._life:
            self._life, self._last, self.right = life, None, None
        if self._last is None or record.offset > self._last.offset:
            self._last = record
        if value.startswith(self._begins):
            self.right = _newer(self.right, _decoded(record, life))

    @property
    def found(self) -> Increment | ValueError | None:
        """The newest of its position, else the last one."""
        last = None if self._last is None else _decoded(self._last, self._life)
        if isinstance(self.right, Increment) and isinstance(last, Increment):
            return self.right._replace(last_generation=last.generation)
        return last if self.right is None else self.right


def _newer(before: Increment | ValueError | None, found: Increment | ValueError) -> Increment | ValueError:
    """Of two that are of one position, in the order of the log."""
    if isinstance(before, Increment) and isinstance(found, Increment) and before.generation > found.generation:
        return before
    return found


async def _told(ask: _Ask, places: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
    """Where these begin or end; without those whose broker does not say so. Asked one by one where not all answer."""
    try:
        async with asyncio.timeout(timeout):
            return dict(await ask(places, timeout))
    except TimeoutError:
        each = await asyncio.gather(*[ask([place], timeout) for place in places], return_exceptions=True)
    found: dict[TopicPartition, int] = {}
    for one in each:
        if not isinstance(one, BaseException):
            found |= one
        elif not isinstance(one, TimeoutError):
            raise one
    return found


def _decoded(record: Record, life: int) -> Increment | ValueError:
    try:
        return decode_increment(record.value, life)._replace(offset=record.offset)
    except ValueError as error:
        return error
