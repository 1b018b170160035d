"""Which letters are settled (replayed or dropped), kept as the committed offset and offset map of a group.

The group has members only while a command settles letters; commits carry their generation, see
:mod:`~aioparallel.cli.dlq.holding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.offsets import Ledger, OffsetMap, decode_offset_map, fit_offset_map
from aioparallel.records.errors import AioparallelError, OffsetMapError
from aioparallel.records.record import TopicPartition

__all__ = ["Holding", "Marks", "MarksRefused", "PartitionMarks"]

LIMIT: Final = 4096
"""UTF-16 characters of metadata that Kafka accepts with a commit, by default."""

COMMIT_TIMEOUT: Final = 30.0
RETRY_PAUSE: Final = 0.2
CERTAIN_FOR: Final = 2.0
# Seconds. For CERTAIN_FOR after an acknowledged commit, no other process can have been assigned the topic.


class MarksRefused(AioparallelError):
    """The marks could not be committed."""


class Holding(Protocol):
    """The right to settle letters of a topic, see :class:`~aioparallel.cli.dlq.holding.Hold`."""

    async def generation(self, timeout: float) -> Generation:
        """The generation to commit under. Raises MarksRefused without the right."""


class PartitionMarks:
    """Which letters of one partition are settled.

    ``unsaved``: offsets settled since the last acknowledged commit, in the order of settling.
    """

    def __init__(self, partition: TopicPartition, group: str, committed: Committed | None, beginning: int) -> None:
        self.partition = partition
        self.base = beginning if committed is None else committed.offset
        self.committed = committed
        self.problem: str | None = None
        try:
            found = decode_offset_map(self.base, committed.metadata if committed else "")
        except OffsetMapError as error:
            found = OffsetMap(self.base, self.base - 1)
            self.problem = (
                f"{partition}: the metadata that group {group!r} has committed with offset {self.base} is not an "
                f"offset map ({error}), so it is unknown which letters above it are settled. Choose another --group"
            )
        self.is_settled = found.looker()
        """Whether a letter was settled by the commit at the start."""
        self._ledger = Ledger(self.base, found)
        self.unsaved: list[int] = []

    def register(self, letters: Sequence[int], next_offset: int) -> None:
        """Add the offsets of letters up to ``next_offset``. Other offsets below it need no mark."""
        self._ledger.register(letters, next_offset)

    def settle(self, offset: int) -> None:
        """Settle an open letter."""
        self._ledger.complete(offset)
        self.unsaved.append(offset)

    def first_open(self, more: Collection[int] = ()) -> int:
        """The first letter that is open after ``more`` are settled; without one, the end of what was read."""
        return self._outline(more)[0]

    def commit_with(self, more: Collection[int] = ()) -> Committed | None:
        """What to commit after ``more`` open letters are settled; None if that is too large for commit metadata."""
        base, highest, open_ones = self._outline(more)
        text, reached = fit_offset_map(base, highest, open_ones, limit=LIMIT)
        return Committed(base, text) if reached >= highest or highest < base else None

    def _outline(self, more: Collection[int]) -> tuple[int, int, list[int]]:
        """Base, last settled offset, and open offsets in between."""
        ledger = self._ledger
        base = ledger.next_commit
        highest = max(ledger.highest_completed, *more) if more else ledger.highest_completed
        open_ones: list[int] = []
        for offset in ledger.incompletes:
            if offset in more:
                continue
            if not open_ones:
                base = offset
            if offset > highest:
                break
            open_ones.append(offset)
        else:
            if not open_ones:
                base = max(ledger.position, ledger.restored_until + 1)
        return base, highest, open_ones


class Marks:
    """The marks of all partitions of a command."""

    def __init__(
        self,
        client: Client,
        group: str,
        committed: Mapping[TopicPartition, Committed],
        beginnings: Mapping[TopicPartition, int],
        holding: Holding,
    ) -> None:
        self.group = group
        self._client = client
        self._holding = holding
        self._acknowledged = float("-inf")
        self._partitions = {
            tp.partition: PartitionMarks(tp, group, committed.get(tp), beginning)
            for tp, beginning in sorted(beginnings.items())
        }

    def __getitem__(self, partition: int) -> PartitionMarks:
        return self._partitions[partition]

    def __iter__(self) -> Iterator[PartitionMarks]:
        return iter(self._partitions.values())

    @property
    def unsaved(self) -> dict[int, list[int]]:
        """Settled offsets that are not committed, by partition."""
        return {number: one.unsaved for number, one in self._partitions.items() if one.unsaved}

    def check_readable(self) -> None:
        """Raises MarksRefused if a partition's commit cannot be read: settled letters would be settled again."""
        for one in self:
            if one.problem:
                raise MarksRefused(one.problem)

    async def check_writable(self, partitions: Collection[int]) -> None:
        """Commit the known marks again, to find a missing permission before anything is produced. Raises MarksRefused
        also if another process has changed the marks since they were read.
        """
        wanted = [self._partitions[number] for number in partitions]
        found = await self._client.committed([one.partition for one in wanted], COMMIT_TIMEOUT)
        for one in wanted:
            if found.get(one.partition) != one.committed:
                raise MarksRefused(
                    f"{one.partition}: another process has committed to group {self.group!r} since this command began; "
                    "nothing was done. Run it again, and only one at a time"
                )
        await self._renew(wanted)

    async def confirm(self, number: int) -> None:
        """Make sure that no other process settles letters of this topic now. Raises MarksRefused.

        This process may have been suspended between any two steps for so long that the group has removed it.
        """
        if asyncio.get_running_loop().time() - self._acknowledged > CERTAIN_FOR:
            await self._renew([self._partitions[number]])

    async def _renew(self, wanted: Collection[PartitionMarks]) -> None:
        await self._commit({one.partition: one.committed or Committed(one.base, "") for one in wanted}, COMMIT_TIMEOUT)

    async def save(self, partitions: Iterable[int], timeout: float = COMMIT_TIMEOUT) -> None:
        """Commit what is settled in these partitions. Raises MarksRefused; ``unsaved`` then has the offsets."""
        offsets: dict[TopicPartition, Committed] = {}
        for number in partitions:
            one = self._partitions[number]
            if (committed := one.commit_with()) is None:
                raise MarksRefused(too_large(one.partition))
            offsets[one.partition] = committed
        await self._commit(offsets, timeout)
        for tp, committed in offsets.items():
            one = self._partitions[tp.partition]
            one.committed = committed
            one.unsaved = []

    async def _commit(self, offsets: Mapping[TopicPartition, Committed], timeout: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while True:
            left = max(0.1, ends - loop.time())
            generation = await self._holding.generation(left)
            began = loop.time()
            results = await self._client.commit(offsets, generation, left)
            faults = {tp: fault for tp, fault in results.items() if fault is not None}
            if not faults:
                self._acknowledged = began
                return
            # Fenced: a rebalance has happened; generation() above says whether this process keeps its place.
            passing = all(fault in _PASSING for fault in faults.values())
            if not passing or left <= RETRY_PAUSE:
                # A lasting fault is the more useful one to report.
                tp, fault = max(faults.items(), key=lambda found: found[1] not in _PASSING)
                raise MarksRefused(self._refusal(tp, fault, timeout))
            await asyncio.sleep(RETRY_PAUSE)

    def _refusal(self, partition: TopicPartition, fault: CommitFault, timeout: float) -> str:
        where = f"{partition}: the marks could not be committed in group {self.group!r}"
        return {
            CommitFault.RETRIABLE: f"{where}: no final answer within {timeout:g} s; is the cluster healthy?",
            CommitFault.FENCED: f"{where}: this process is no longer a member",
            CommitFault.REFUSED: f"{where}: the cluster refuses it; this user needs READ on the group and on the topic",
            CommitFault.METADATA_TOO_LARGE: f"{where}: the broker accepts less metadata than Kafka's default "
            "(offset.metadata.max.bytes); settle the oldest letters first",
        }[fault]


_PASSING: Final = frozenset({CommitFault.RETRIABLE, CommitFault.FENCED})


def too_large(partition: TopicPartition) -> str:
    """The message about marks that are too large, with what to do."""
    return (
        f"{partition}: too many single letters would be settled between open ones: that does not fit into the "
        f"{LIMIT:,} characters of metadata that Kafka keeps with a commit. Settle the oldest letters of the partition "
        "first (--limit N), or replay without settling (--no-mark)"
    )
