"""Restores the state at a committed position: reads a full snapshot and replays the records after it.

The snapshot contains no record that is not committed. ``x`` marks the records that are replayed: they are complete at
the committed position and not in the snapshot. Handlers run for all other records.

::

    log         ......................................................................
    snapshot    |##########|  base offset and offset map of the snapshot
    replay                 |..xx..x...xxx|  base offset and offset map of the commit
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable
from contextlib import aclosing
from types import CoroutineType
from typing import Any, Final

from aioparallel.config.options import Options
from aioparallel.group.client import Committed, Span
from aioparallel.group.unreadable import read_past
from aioparallel.handlers.stack import deserialise
from aioparallel.offsets import OffsetMap
from aioparallel.persistence.state.increments import Increment, Named
from aioparallel.persistence.state.pieces import EntryReader, Head, decode_head, decode_piece_key
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.topics import StateTopics
from aioparallel.persistence.state.view import Restored, position_of
from aioparallel.records.errors import (
    DeserializationError,
    FetchFailed,
    PositionOutsideLog,
    StateLogTruncated,
    StateNotRestored,
    UndecodableRecord,
)
from aioparallel.records.history import refuse_undecodable
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.user_errors import RAISED, refuse_coroutine, repr_of

__all__ = ["Restoring"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 500
"""Values that are loaded in one turn of the event loop: about a millisecond."""
_REQUEST: Final = 10.0
"""Seconds for a request about a log."""


class _Unusable(Exception):
    """A full snapshot differs from what its increment says."""


class Restoring:
    """Restores the state of one partition at one committed position."""

    def __init__(self, partition: TopicPartition, committed: Committed, topics: StateTopics, options: Options) -> None:
        assert options.state is not None
        self._partition = partition
        self._committed = committed
        self._topics = topics
        self._options = options
        self._policy = options.state
        self._position = position_of(committed)
        self._to_read = 0
        self._read = 0
        self.replayed = 0

    @property
    def part(self) -> float:
        """The progress, 0 to 1."""
        return min(1.0, self._read / self._to_read) if self._to_read else 0.0

    @property
    def steps(self) -> object:
        """A value that changes with each progress."""
        return self._to_read, self._read, self.replayed

    async def run(self, increment: Increment | None) -> Restored:
        """Restore the state. ``increment``: the one that counts at the position, or None.

        Raises StateNotRestored, StateLogTruncated, ClientError, TimeoutError.
        """
        usable: list[tuple[Named, OffsetMap | None]] = []
        since: OffsetMap | None = None
        table: Table[Any] = Table()
        for named in () if increment is None else increment.snapshots:
            if since is not None:
                usable.append((named, None))
                continue
            try:
                table, since = await self._snapshot(named)
                usable.append((named, since))
            except _Unusable as error:
                logger.warning(
                    "%s: the full snapshot of its state at %s-%d offset %d cannot be used (%s): an older one is tried, "
                    "and more records are replayed",
                    self._partition,
                    self._topics.names.snapshots,
                    self._partition.partition,
                    named.first,
                    error,
                    extra={"action": "snapshot_unusable"},
                )
        if since is None:
            since = await self._origin_of(increment)
        offsets = () if increment is None else await self._unapplied(increment)
        is_complete = self._position.looker()
        unapplied = {offset for offset in offsets or () if is_complete(offset)}
        # An increment of another position may be a former owner's, without the dead letters of its successor.
        is_it = increment is not None and increment.position[:2] == self._committed[:2]
        knows_all = (
            is_it and offsets is not None and increment is not None and (bool(usable) or not increment.snapshots)
        )
        await self._replay(table, since, unapplied, is_lenient=not knows_all)
        origin = since.base_offset if increment is None or not usable else increment.origin
        at = None if increment is None else increment.at
        incarnation = 0 if increment is None else increment.incarnation
        return Restored(table, origin, unapplied, usable, self.replayed, since.base_offset, incarnation, at)

    async def _unapplied(self, increment: Increment) -> Collection[int] | None:
        """Returns the offsets that are not in the state; None if they cannot be read."""
        try:
            return await self._topics.unapplied_of(self._partition, increment, _REQUEST)
        except ValueError as error:
            logger.warning(
                "%s: the increment of its state in %s at offset %d cannot be read completely (%s): records that were "
                "dead-lettered or skipped since its full snapshot are in the state, unless apply() raises for them",
                self._partition,
                self._topics.names.increments,
                increment.offset,
                error,
                extra={"action": "increment_unreadable"},
            )
            return None

    async def _origin_of(self, increment: Increment | None) -> OffsetMap:
        """Returns the position at which the state is empty."""
        if increment is not None:
            begins = min(increment.origin, self._position.base_offset)
            if increment.snapshots:
                logger.warning(
                    "%s: none of the full snapshots of its state can be used: the state is made of all records from "
                    "offset %d on, also of those that were dead-lettered or skipped before the snapshots",
                    self._partition,
                    begins,
                    extra={"action": "state_from_log"},
                )
        else:
            begins = await self._topics.beginning(self._partition, _REQUEST)
            if begins and self._position.base_offset > begins:
                why = f"{self._topics.names.increments} has no increment of it"
                raise StateLogTruncated(self._partition, self._topics.group_id, 0, begins, why)
            begins = min(begins, self._position.base_offset)
            logger.warning(
                "%s: group %s has no state at its committed offset %d: the state is made of all records before that",
                self._partition,
                self._topics.group_id,
                self._committed.offset,
                extra={"action": "state_from_log"},
            )
        return OffsetMap(begins, begins - 1)

    # -- a full snapshot --------------------------------------------------------------------------------

    async def _snapshot(self, named: Named) -> tuple[Table[Any], OffsetMap]:
        table: Table[Any] = Table()
        reader = EntryReader()
        head: Head | None = None
        pieces = 0
        self._to_read, self._read = named.pieces, 0
        place = TopicPartition(self._topics.names.snapshots, self._partition.partition)
        if (ends := await self._topics.end(place, _REQUEST)) < named.next:
            raise _Unusable(f"its partition ends at offset {ends}: was the topic deleted and created again?")
        try:
            async with aclosing(self._topics.client.read({place: Span(named.first, named.next)})) as reads:
                async for fetched in reads:
                    for number, record in self._ours(fetched.records, named):
                        if number != pieces:
                            raise _Unusable(f"piece {pieces} of {named.pieces} is missing")
                        pieces += 1
                        self._read += 1
                        if head is None:
                            head = self._checked(record)
                        else:
                            await self._load(table, reader, record)
        except FetchFailed as error:
            raise _Unusable(str(error)) from error
        if head is None or pieces != named.pieces or not reader.is_whole or table.count != named.keys:
            raise _Unusable(f"it has {pieces} of {named.pieces} pieces, {table.count} of {named.keys} keys")
        return table, head.position

    def _ours(self, records: Iterable[Record], named: Named) -> Iterable[tuple[int, Record]]:
        for record in records:
            key = decode_piece_key(record.key)
            if key is None or key.group_id != self._topics.group_id or key.partition != self._partition:
                continue
            if dict(record.headers).get("id") == named.id.encode():
                yield key.number, record

    def _checked(self, record: Record) -> Head:
        """Returns the head. Raises _Unusable if the snapshot contains records that are not committed."""
        try:
            head = decode_head(record.value)
        except ValueError as error:
            raise _Unusable(str(error)) from error
        if not self._position.covers(head.position):
            raise _Unusable(f"it is of offset {head.position.base_offset}, after the committed position")
        return head

    async def _load(self, table: Table[Any], reader: EntryReader, record: Record) -> None:
        load = self._policy.load
        try:
            for count, (key, dumped) in enumerate(reader.entries_in(record.value or b""), 1):
                try:
                    value = load(dumped)
                    if type(value) is CoroutineType:
                        refuse_coroutine(value)
                    table.set(key, value)
                except RAISED as error:
                    raise StateNotRestored(
                        self._partition,
                        f"State load raised {repr_of(error)} for the value of key {key!r}; it must accept what an "
                        "earlier dump returned. Or start a new state with another group_id",
                    ) from error
                if not count % _AT_ONCE:
                    await asyncio.sleep(0)
        except ValueError as error:
            raise _Unusable(str(error)) from error
        await asyncio.sleep(0)

    # -- the replay -------------------------------------------------------------------------------------

    async def _replay(self, table: Table[Any], since: OffsetMap, unapplied: set[int], *, is_lenient: bool) -> None:
        """Apply to the table the records that are complete at the position and not in ``since``.

        ``is_lenient``: whether to leave out records that ``apply`` refuses, because it is not known which it refused
        before.
        """
        position = self._position
        first, end = since.base_offset, max(position.base_offset, position.highest_succeeded + 1)
        # The end of the log, and not of its committed records: the group may have read uncommitted ones, or its
        # position was set there.
        if end > await self._topics.end(self._partition, _REQUEST):
            raise PositionOutsideLog(self._partition, position.base_offset)
        if _first_lost(position, since, unapplied, end) is None:
            return
        await self._expect_log(position, since, unapplied)
        is_in_position, is_in_snapshot = position.looker(), since.looker()
        self._to_read, self._read = end - first, 0
        left_out: list[int] = []
        spans, skip = {self._partition: Span(first, end)}, self._options.skip_unreadable
        async with aclosing(read_past(self._topics.client, spans, skip)) as reads:
            async for fetched in reads:
                for record in fetched.records:
                    offset = record.offset
                    if not is_in_position(offset) or is_in_snapshot(offset) or offset in unapplied:
                        continue
                    self.replayed += 1
                    if not self._apply(table, record, is_lenient=is_lenient):
                        unapplied.add(offset)
                        left_out.append(offset)
                self._read = fetched.next_offset - first
                await asyncio.sleep(0)
        # A read skips records that are deleted meanwhile, without an error.
        await self._expect_log(position, since, unapplied)
        if left_out:
            logger.warning(
                "%s: %d records, the first at offset %d, are not in the state: they have no key, cannot be decoded, or "
                "apply() or a deserialiser raised for them",
                self._partition,
                len(left_out),
                left_out[0],
                extra={"action": "state_left_out", "offset": left_out[0], "count": len(left_out)},
            )

    def _apply(self, table: Table[Any], record: Record[Any, Any], *, is_lenient: bool) -> bool:
        key, policy = record.raw_key, self._policy
        if key is None:
            return False  # its attempt failed with RecordWithoutKey
        try:
            refuse_undecodable(record)
        except UndecodableRecord:
            return False  # its attempt failed with this error
        try:
            deserialise(self._options.key_deserializer, self._options.value_deserializer, record)
            after = policy.apply(table.get(key, policy.initial), record)
            refuse_coroutine(after)
        except RAISED as error:
            if is_lenient:
                return False
            cause = error.__cause__ if isinstance(error, DeserializationError) else None
            raise StateNotRestored(
                self._partition,
                f"apply() or a deserialiser raised {repr_of(cause or error)} for offset {record.offset}, which it "
                "accepted before: they must be pure. If the cause was temporary, start again. If apply() was changed, "
                "it must accept old records too. Or start a new state with another group_id",
            ) from error
        table.set(key, after)
        return True

    async def _expect_log(self, position: OffsetMap, since: OffsetMap, unapplied: set[int]) -> None:
        begins = await self._topics.beginning(self._partition, _REQUEST)
        needed = _first_lost(position, since, unapplied, begins)
        if needed is not None:
            why = f"the newest usable full snapshot is of offset {since.base_offset}"
            raise StateLogTruncated(self._partition, self._topics.group_id, needed, begins, why)


def _first_lost(position: OffsetMap, since: OffsetMap, unapplied: set[int], end: int) -> int | None:
    """Returns the first offset below ``end`` that is complete at the position, and neither at ``since`` nor
    unapplied."""
    for offset in since.incompletes:
        if offset >= end:
            return None
        if position.is_complete(offset) and offset not in unapplied:
            return offset
    behind = max(since.base_offset, since.highest_succeeded + 1)
    incompletes = position.incompletes
    at = bisect_left(incompletes, behind)
    end = min(end, max(position.base_offset, position.highest_succeeded + 1))
    for offset in range(behind, end):
        if at < len(incompletes) and incompletes[at] == offset:
            at += 1
        elif offset not in unapplied:
            return offset
    return None
