"""How an assignment opens: take the partition over, restore its map or find its start, and let the client fetch it.

After each ``await`` the assignment may be gone, or the member may be in another generation. So the code checks the
assignment again before it changes it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Committed
from aioparallel.group.leader_epochs import UNKNOWN, LeaderEpochs
from aioparallel.group.offset_stores import Positions
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import CREATED_AGAIN, Truncations, ledger_below
from aioparallel.group.turns import Spawn, Turns
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.records.errors import NoCommittedOffset, NoOffsetMap, OffsetMapError, PositionOutsideLog
from aioparallel.records.record import TopicPartition

__all__ = ["Opener"]

logger = logging.getLogger(__name__)

# Characters of restored metadata after which the event loop gets a turn (a millisecond or two). One map is one step.
_TURN = 1_000
# Seconds between two reads of positions that the store has not decided yet.
_UNDECIDED_PAUSE = 0.05
# Seconds for a request for the beginnings or ends of several logs. After that, each log is asked for alone.
_TOGETHER = 2.0
# Stands for the position of a partition that the store has not decided: it may have one.
_STORED: Final = Committed(0, "")
# After so many tries without an answer from a leader a line is logged. Before that, metadata may just be on its way.
_LOG_AFTER: Final = 3


class _LogUnknown(TimeoutError):
    """Where the log of one of these partitions begins or ends is unknown: it has no leader, or its topic is gone."""


class _ValidEndUnknown(Exception):
    """Which part of these logs still holds the committed records is unknown. Other partitions do not wait."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(partitions)
        self.partitions = partitions


class Opener:
    """Opens assignments.

    ``on_fresh()`` is called when assignments begin at chosen starts, which must be committed. ``on_change()`` is called
    when fetches must be planned again.

    ``refuses_unreadable_maps``: as in :class:`~aioparallel.group.committing.CommitStrategy`. ``longest_wait``,
    ``spawn``: as in :class:`~aioparallel.group.turns.Turns`. ``read_before``: as in
    :class:`~aioparallel.group.assigned_partitions.AssignedPartitions`.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        positions: Positions,
        starts: Starts,
        truncations: Truncations,
        *,
        longest_wait: float,
        spawn: Spawn,
        on_fresh: Callable[[], None],
        on_change: Callable[[], None],
        read_before: Mapping[TopicPartition, tuple[bytes, Committed | None]],
        refuses_unreadable_maps: bool = False,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._read_before = read_before
        self._positions = positions
        self._refuses_unreadable_maps = refuses_unreadable_maps
        self._starts = starts
        self._turns = Turns(starts, longest_wait, begin=self._begin, spawn=spawn)
        self._truncations = truncations
        self._on_fresh = on_fresh
        self._on_change = on_change
        self.unreadable_maps = 0
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._first_ids: dict[str, bytes] = {}
        """The first id that this member has seen of each topic. Another id means that it was created again."""

    async def open(self, assignments: Sequence[Assignment]) -> None:
        """Open these assignments. Tries again while there is no answer and the assignments are still current.

        A partition whose log is unknown does not delay the others. Assignments that wait for their turn are opened by
        that.
        """
        unknown_times = 0
        for attempt in itertools.count(1):
            opening = [
                assignment
                for assignment in assignments
                if assignment.state is AssignmentState.OPENING and not self._turns.waits(assignment)
            ]
            if not opening:
                return
            try:
                if not await self._open_once(opening):
                    await asyncio.sleep(_UNDECIDED_PAUSE)
            except _LogUnknown:
                if len(opening) > 1:
                    await self._open_each(opening)
                    return
                if attempt == 1:
                    logger.warning(
                        "%s: no broker answers where the log begins and ends; asking again until one does",
                        opening[0].partition,
                        extra={"action": "start_retry"},
                    )
                await asyncio.sleep(REQUEST_PAUSE)
            except _ValidEndUnknown as unknown:
                unknown_times += 1
                if unknown_times == _LOG_AFTER:
                    logger.warning(
                        "%s%s: no leader answers whether the log still holds the committed records; asking again until "
                        "one does",
                        unknown.partitions[0],
                        f" (and {len(unknown.partitions) - 1} more partitions)" if unknown.partitions[1:] else "",
                        extra={"action": "log_end_retry", "partitions": len(unknown.partitions)},
                    )
                await asyncio.sleep(REQUEST_PAUSE)
            except TimeoutError:
                logger.warning(
                    "%d partitions wait for their committed offsets: no answer (try %d)",
                    len(opening),
                    attempt,
                    extra={"action": "open_retry"},
                )
                await asyncio.sleep(REQUEST_PAUSE)

    async def _open_each(self, assignments: Sequence[Assignment]) -> None:
        """Open each assignment in its own task. Raises the first error, and cancels the others."""
        opening = [asyncio.ensure_future(self.open([assignment])) for assignment in assignments]
        try:
            await asyncio.gather(*opening)
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

    async def _open_once(self, assignments: Sequence[Assignment]) -> bool:
        """Open the assignments with known positions. Returns whether these are all. Raises _ValidEndUnknown."""
        # All assignments of a member have the same generation.
        generation = assignments[0].generation
        asked = [assignment.partition for assignment in assignments]
        timeout = _TOGETHER if len(asked) > 1 else REQUEST_TIMEOUT
        # Ids first: a position may then be of a newer topic than the id, but never of an older one.
        ids = await self._ids_of(asked)
        found = await self._positions.take_over(asked, generation, REQUEST_TIMEOUT)
        if self._truncations.refuses:
            await self._expect_ends(assignments, found, timeout)
        stored = {partition: committed for partition, committed in found.items() if committed is not None}
        valid = await self._valid_ends(stored)
        created_again = await self._created_again(found, ids, timeout)
        await self._resume(assignments, stored, valid, created_again)
        is_known = True
        if fresh := [assignment for assignment in assignments if found.get(assignment.partition, _STORED) is None]:
            is_known = await self._start(fresh, created_again, timeout)
        if unknown := [partition for partition in stored if partition not in valid]:
            raise _ValidEndUnknown(unknown)
        return is_known and len(found) == len(asked)

    async def _resume(
        self,
        assignments: Sequence[Assignment],
        stored: Mapping[TopicPartition, Committed],
        valid: Mapping[TopicPartition, int | None],
        created_again: Mapping[TopicPartition, int],
    ) -> None:
        """Open the assignments with a stored position whose leader has answered what of the log is valid."""
        turn = 0
        for assignment in assignments:
            if assignment.state is not AssignmentState.OPENING or assignment.partition not in valid:
                continue  # it has gone meanwhile, or its position is not decided, or it has none
            committed = stored[assignment.partition]
            self._restore(assignment, committed, valid[assignment.partition], created_again.get(assignment.partition))
            self.go(assignment)
            turn += len(committed.metadata)
            if turn > _TURN:
                turn = 0
                self._on_change()
                await asyncio.sleep(0)
        self._on_change()

    async def _valid_ends(self, stored: Mapping[TopicPartition, Committed]) -> Mapping[TopicPartition, int | None]:
        """Return up to which offset each log holds what was committed; None: the position needs no check."""
        epochs = {p: one.leader_epoch for p, one in stored.items() if one.metadata or one.leader_epoch != UNKNOWN}
        ends = await self._client.valid_ends(epochs, REQUEST_TIMEOUT) if epochs else {}
        return {**{partition: None for partition in stored if partition not in epochs}, **ends}

    async def _start(
        self, fresh: Sequence[Assignment], created_again: Mapping[TopicPartition, int], timeout: float
    ) -> bool:
        """Open assignments without a stored position, or let them wait for their turn. Returns whether these are
        all."""
        partitions = [assignment.partition for assignment in fresh if assignment.partition not in created_again]
        try:
            ends = await self._starts.ends(partitions, timeout)
        except TimeoutError as error:
            raise _LogUnknown from error
        topics = await self._starts.topics(partitions, REQUEST_TIMEOUT)
        try:
            starts = await self._starts.of(partitions, ends, topics, timeout)
        except TimeoutError as error:
            raise _LogUnknown from error
        entering: dict[Assignment, int] = {}
        unknown = 0
        for assignment in fresh:
            partition = assignment.partition
            if assignment.state is not AssignmentState.OPENING:
                continue  # it has gone meanwhile
            if (begins := created_again.get(partition)) is not None:
                if partition in self._read_before:
                    _, before = self._read_before[partition]
                    known_until = begins - 1 if before is None else before.offset - 1
                    self._truncate(assignment, Ledger(begins), known_until, begins, CREATED_AGAIN)
                else:  # the old topic did not have this partition
                    assignment.ledger = Ledger(begins)
                self._open_fresh([assignment])
            elif partition in starts:
                entering[assignment] = starts[partition]
            elif (choice := self._starts.choice(partition, topics)).policy == "error":
                raise NoCommittedOffset(partition, self._group_id, choice.option)
            else:
                unknown += 1
        self._turns.enter(entering, topics)
        return not unknown

    def _begin(self, starts: Mapping[Assignment, int]) -> None:
        for assignment, start in starts.items():
            assignment.ledger = Ledger(start)
        self._open_fresh(starts)

    def _open_fresh(self, assignments: Collection[Assignment]) -> None:
        """Open assignments and commit their starts. Without a commit, "latest" would skip records after a crash."""
        for assignment in assignments:
            self.go(assignment)
        if assignments:
            self._on_fresh()
            self._on_change()

    async def _expect_ends(
        self, assignments: Sequence[Assignment], found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> None:
        """Raises PositionOutsideLog for a position beyond the end of its log. With ``until="end"`` nothing is fetched
        from such a partition, so no fetch would report it."""
        behind = {
            assignment.partition: committed.offset
            for assignment in assignments
            if (committed := found.get(assignment.partition)) is not None and committed.offset > assignment.target
        }
        if behind:
            try:
                ends = await self._client.written_end_offsets(behind, timeout)
            except TimeoutError as error:
                raise _LogUnknown from error
            for partition, offset in behind.items():
                if partition in ends and offset > ends[partition]:
                    raise PositionOutsideLog(partition, offset)

    async def _ids_of(self, partitions: Collection[TopicPartition]) -> Mapping[str, bytes]:
        try:
            ids = await self._client.topic_ids({partition.topic for partition in partitions}, _TOGETHER)
        except TimeoutError:
            return {}  # then fetched data shows whether the topic is another one
        self._topic_ids |= {partition: ids[partition.topic] for partition in partitions if partition.topic in ids}
        return ids

    async def _created_again(
        self, found: Mapping[TopicPartition, Committed | None], ids: Mapping[str, bytes], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Return the partitions whose topic was deleted and created again, with the first offsets of the new logs.

        A topic is another one if its id has changed since this member last read the partition. For a partition that the
        member has not read, the first id that it saw of the topic counts.

        The position must be missing, or the one that this member committed last. Otherwise another member has committed
        a position for the new topic, and that one is used.
        """
        changed = []
        for partition, committed in found.items():
            if topic_id := ids.get(partition.topic):
                first_id = self._first_ids.setdefault(partition.topic, topic_id)
                before, acknowledged = self._read_before.get(partition, (first_id, None))
                if before != topic_id and _position(committed) in (None, _position(acknowledged)):
                    changed.append(partition)
        try:
            return await self._client.beginning_offsets(changed, timeout) if changed else {}
        except TimeoutError as error:
            raise _LogUnknown from error

    def _restore(self, assignment: Assignment, committed: Committed, valid: int | None, begins: int | None) -> None:
        try:
            restored = decode_offset_map(committed.offset, committed.metadata)
        except OffsetMapError as error:
            if self._refuses_unreadable_maps:
                raise NoOffsetMap(assignment.partition, self._group_id, committed.offset, error) from error
            self.unreadable_maps += 1
            logger.warning(
                "%s: the metadata committed at offset %d is no offset map (%s): "
                "completed records above that offset run again",
                assignment.partition,
                committed.offset,
                error,
                extra={"action": "unreadable_map"},
            )
            restored = None
        ledger = Ledger(committed.offset, restored)
        known_until = max(committed.offset - 1, ledger.restored_until)
        assignment.acknowledged = committed
        if valid is not None and committed.leader_epoch == UNKNOWN:
            # Without a leader epoch, ``valid`` is the end of the log. If the map goes beyond it, any part of the map
            # may be of lost records, so none of it is used. If only the position is beyond it, the first fetch reports
            # that, and a reset handles it.
            valid = committed.offset if ledger.restored_until >= valid else None
        if begins is not None:
            self._truncate(assignment, Ledger(begins), known_until, begins, CREATED_AGAIN)
        elif valid is not None and known_until >= valid:
            below = ledger_below(ledger.snapshot(), valid)
            self._truncate(assignment, below, known_until, valid, "its log was truncated while it was not read")
            assignment.leader_epochs = LeaderEpochs(valid - 1, committed.leader_epoch)
        else:
            assignment.ledger = ledger
            assignment.leader_epochs = LeaderEpochs(known_until, committed.leader_epoch)
            assignment.acknowledged_version = ledger.version
        assignment.promised = assignment.ledger.restored_until

    def _truncate(self, assignment: Assignment, ledger: Ledger, known_until: int, valid: int, what: str) -> None:
        """Set the ledger for a log that has lost committed records. The assignment is dirty until it is committed."""
        self._truncations.allow(assignment.partition, known_until + 1)
        assignment.ledger = ledger
        self._truncations.report(assignment, known_until, valid, ledger.position, what)

    def go(self, assignment: Assignment) -> None:
        """Open an assignment: read it from its ledger's position on."""
        assignment.opened = True
        assignment.resetting = False
        assignment.topic_id = assignment.topic_id or self._topic_ids.get(assignment.partition, b"")
        self._client.seek(assignment.partition, assignment.ledger.position)


def _position(committed: Committed | None) -> tuple[int, str] | None:
    """Return a position without its leader epoch, which older brokers do not store."""
    return None if committed is None else (committed.offset, committed.metadata)
