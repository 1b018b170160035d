"""The two topics of a state. Partition *n* of both holds the state of partition *n* of each input topic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from aioparallel.config.state import State
from aioparallel.group.client import Client, Committed, Span
from aioparallel.persistence.compacted_topic import CompactedTopic
from aioparallel.persistence.state.increments import (
    Increment,
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

_Request = Callable[[Collection[TopicPartition], float], Awaitable[Mapping[TopicPartition, int]]]

_CONNECTING: Final = 5.0
"""Seconds that a search waits for its first records, which includes connecting."""
_ALL: Final = 2.0
"""Seconds for the offsets of all partitions in one request, at least."""
_FAR: Final = 64_000
"""A search does not go back further than spans of this length for an increment of the position, if it has another."""
_NEAR: Final = 64
"""Other records that usually are between an increment and its parts, at most."""
_FIRST_SPAN: Final = 1_000
"""Offsets at the end of a partition that are searched first. Each next span is eight times as long."""


_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Topic names that Kafka accepts."""


class TopicNames(NamedTuple):
    """The topics of a group's state."""

    increments: str
    snapshots: str

    @classmethod
    def of(cls, policy: State[object], group_id: str) -> TopicNames:
        """Returns the topics that the policy names, else those named after the group. Raises ConfigurationError."""
        found = cls(policy.topic or f"{group_id}-state", policy.snapshots or f"{group_id}-snapshots")
        for option, given, name in zip(("topic", "snapshots"), (policy.topic, policy.snapshots), found, strict=True):
            if not _NAME.fullmatch(name):
                source = "" if given else f" (the default for the group's name {group_id!r})"
                raise ConfigurationError(
                    f"State {option}",
                    name,
                    f"is not a valid topic name{source}: set State({option}=...) to at most 249 ASCII letters, digits, "
                    "'.', '_' and '-'",
                )
        if found.increments == found.snapshots:
            raise ConfigurationError("State snapshots", found.snapshots, "must differ from the topic of the increments")
        return found


class StateTopics:
    """Checks and reads the two topics for one group."""

    def __init__(self, names: TopicNames, group_id: str, client: Client) -> None:
        self.names = names
        self.group_id = group_id
        self.client = client
        hint = (
            f" (the two topics of the state are {names.increments} and {names.snapshots}; State(topic=, snapshots=) "
            "sets others)"
        )
        self._topics = [CompactedTopic(name, "State topic", "state", client, hint) for name in names]
        self._are_logs: set[str] = set()  # input topics that are not compacted

    # -- checks -----------------------------------------------------------------------------------------

    async def check(self, read: Collection[TopicPartition], timeout: float) -> None:
        """Check that the topics can hold the state of these partitions, and that these are not compacted.

        Raises ConfigurationError.
        """
        await self.check_partitions(read, timeout)
        for topic in self._topics:
            await topic.check_policy(timeout)

    async def check_partitions(self, read: Collection[TopicPartition], timeout: float) -> None:
        """Check partitions that may be new. Raises ConfigurationError."""
        for topic in self._topics:
            await topic.check_partitions(read, timeout)
        for name in {partition.topic for partition in read} - self._are_logs:
            policy = await self.client.cleanup_policy(name, timeout)
            if policy is not None and "compact" in policy:
                raise ConfigurationError(
                    "topics",
                    name,
                    f"cannot have a state: its cleanup.policy is {policy}, which removes records that a restore needs",
                )
            self._are_logs.add(name)

    # -- increments -------------------------------------------------------------------------------------

    async def last_increments(
        self, positions: Mapping[TopicPartition, Committed], timeout: float, idle_timeout: float
    ) -> Mapping[TopicPartition, Increment | ValueError | None]:
        """Returns the increment of each partition that counts at its position.

        That is the newest increment with this position, else the last one, else None. A ValueError says why it cannot
        be decoded. A former owner's increment may be written late, after those of its successor. Increments of earlier
        incarnations do not count.

        The result lacks partitions whose increments cannot all be read yet: a transaction is open before the last ones,
        the broker does not return the end of the log, or no data arrive for ``idle_timeout`` seconds. Raises
        StateNotRestored if a batch cannot be read, TimeoutError, ClientError.
        """
        places = {self.place_of(partition) for partition in positions}
        limit = min(timeout, max(_ALL, idle_timeout))
        begins = await _offsets(self.client.beginning_offsets, places, limit)
        # The increment of a position is written before the position is committed, so it is before these ends.
        ends = await _offsets(self.client.written_end_offsets, places, limit)
        found = {partition: _Newest(committed) for partition, committed in positions.items()}
        unseen = {place for place in places if place not in begins or place not in ends}
        length = _FIRST_SPAN
        while True:
            # If a partition has increments and none is of the position, probably the group's offset was set by hand.
            is_far = length > _FAR
            missing = {
                partition: one
                for partition, one in found.items()
                if one.right is None
                and not (is_far and one.found is not None)
                and self.place_of(partition) not in unseen
            }
            spans = {}
            for place in {self.place_of(partition) for partition in missing}:
                first, end = begins[place], ends[place]
                if first < end:
                    spans[place] = Span(max(first, end - length), end)
                    ends[place] = spans[place].start
            if not spans:
                break
            try:
                unseen |= await self._search(spans, idle_timeout, missing)
            except FetchFailed as error:
                raise self._unreadable(error, missing) from error
            length *= 8
        seen = {partition: one for partition, one in found.items() if self.place_of(partition) not in unseen}
        return {partition: one.found for partition, one in seen.items()}

    def _unreadable(self, error: FetchFailed, wanted: Collection[TopicPartition]) -> StateNotRestored:
        """The batch is not skipped: it may hold the increment that counts, and another one would be wrong."""
        place, after = error.partition, error.offset + 1
        return StateNotRestored(
            min(partition for partition in wanted if self.place_of(partition) == place),
            f"{error}. The batch may hold the increment that describes the state, so no other increment is used, and "
            "all states in that partition wait. Make a replica that can read the batch the leader. Or delete the "
            f"records up to it: kafka-delete-records.sh, offset {after} of {place}, while that topic has "
            "cleanup.policy=[compact,delete] and retention.ms=-1. A state that loses its increments by that is made of "
            "the whole log, also of records that were dead-lettered or skipped; other states do not change",
        )

    def place_of(self, partition: TopicPartition) -> TopicPartition:
        """Returns the partition that holds the increments."""
        return TopicPartition(self.names.increments, partition.partition)

    async def _search(
        self, spans: Mapping[TopicPartition, Span], idle_timeout: float, wanted: Mapping[TopicPartition, _Newest]
    ) -> set[TopicPartition]:
        """Collect the increments in these spans. Returns the partitions that were not read to the end."""
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
                        wanted[place.partition].see(place.incarnation, record)
        return unseen

    async def unapplied_of(self, partition: TopicPartition, increment: Increment, timeout: float) -> Collection[int]:
        """Returns the offsets of an increment that are not in the state.

        They are in the increment, or in its parts, which precede it among the records of other partitions. Raises
        ValueError if a part is missing or cannot be decoded; StateNotRestored, TimeoutError, ClientError.
        """
        if increment.parts is None:
            return read_unapplied(increment.unapplied)
        place = self.place_of(partition)
        begins = await self.beginning(place, timeout)
        found: dict[int, Collection[int]] = {}
        end, length = increment.offset, increment.parts.number + _NEAR
        while len(found) < increment.parts.number and begins < end:
            start = max(begins, end - length)
            try:
                async with aclosing(self.client.read({place: Span(start, end)})) as reads:
                    async for fetched in reads:
                        self._take_parts(fetched.records, partition, increment, found)
            except FetchFailed as error:
                raise self._unreadable(error, [partition]) from error
            end, length = start, length * 8
        if len(found) < increment.parts.number:
            raise ValueError(f"it has {len(found)} of {increment.parts.number} parts")
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

    async def beginning(self, place: TopicPartition, timeout: float) -> int:
        """Returns the first offset of a log. Raises TimeoutError, ClientError."""
        return _answered(await self.client.beginning_offsets([place], timeout), place)

    async def end(self, place: TopicPartition, timeout: float) -> int:
        """Returns the end offset of a log. Raises TimeoutError, ClientError."""
        return _answered(await self.client.written_end_offsets([place], timeout), place)


class _Newest:
    """The newest increment of the position, and the last one, among those of one partition that were read."""

    def __init__(self, committed: Committed) -> None:
        self._begins = begins_of_increment(committed)
        self._incarnation = -1
        self._last: Record | None = None
        self.right: Increment | ValueError | None = None

    def see(self, incarnation: int, record: Record) -> None:
        """Add an increment. Spans are read from the end of the log to its start, each in order."""
        value = record.value
        # An increment's offset is not below its incarnation, unless the topic was deleted and created again.
        incarnation = min(incarnation, record.offset)
        if value is None or incarnation < self._incarnation:
            return
        if incarnation > self._incarnation:
            self._incarnation, self._last, self.right = incarnation, None, None
        if self._last is None or record.offset > self._last.offset:
            self._last = record
        if value.startswith(self._begins):
            self.right = _newer(self.right, _decoded(record, incarnation))

    @property
    def found(self) -> Increment | ValueError | None:
        """The newest increment of the position, else the last one."""
        last = None if self._last is None else _decoded(self._last, self._incarnation)
        if isinstance(self.right, Increment) and isinstance(last, Increment):
            return self.right._replace(last_generation=last.generation)
        return last if self.right is None else self.right


def _newer(before: Increment | ValueError | None, found: Increment | ValueError) -> Increment | ValueError:
    """Returns the one of the later generation, else the second, of two increments of one position."""
    if isinstance(before, Increment) and isinstance(found, Increment) and before.generation > found.generation:
        return before
    return found


async def _offsets(request: _Request, places: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
    """Returns the offsets of these partitions, without those whose broker does not answer.

    If one request for all of them times out, each partition gets its own.
    """
    try:
        async with asyncio.timeout(timeout):
            return dict(await request(places, timeout))
    except TimeoutError:
        each = await asyncio.gather(*[request([place], timeout) for place in places], return_exceptions=True)
    found: dict[TopicPartition, int] = {}
    for one in each:
        if not isinstance(one, BaseException):
            found |= one
        elif not isinstance(one, TimeoutError):
            raise one
    return found


def _answered(found: Mapping[TopicPartition, int], place: TopicPartition) -> int:
    if place not in found:
        raise TimeoutError
    return found[place]


def _decoded(record: Record, incarnation: int) -> Increment | ValueError:
    try:
        return decode_increment(record.value, incarnation)._replace(offset=record.offset)
    except ValueError as error:
        return error
