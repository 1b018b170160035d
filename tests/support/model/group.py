"""The other side of the model: logs with gaps, and a group coordinator that takes commits, refuses or forgets them."""

from __future__ import annotations

import enum
import types
from collections.abc import Generator, Mapping
from typing import cast

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.committer import Committer
from aioparallel.group.offset_stores import OffsetStore
from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.records.record import Record, TopicPartition
from tests.support.model.model import GAP, Cell, Holding

__all__ = ["Commits", "Fate", "Group", "Log"]

TOPIC = "t"


class Log:
    """One partition: its offsets, what the group committed of it, and which offsets have ended for good."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.committed: Committed | None = None
        self.ended: set[int] = set()

    def read(self, partition: int, first: int, last: int) -> list[Record]:
        """The records from ``first`` up to ``last``, without the gaps. Values have different sizes."""
        return [
            Record(TOPIC, partition, offset, cast("bytes | None", self.cells[offset]), b"v" * (offset % 3))
            for offset in range(max(first, 0), last)
            if self.cells[offset] != GAP
        ]

    def lost(self, committed: Committed) -> list[int]:
        """I2: offsets that this commit gives out as complete and that are not."""
        restored = decode_offset_map(committed.offset, committed.metadata)
        open_ones = set(restored.incompletes)
        claimed = [offset for offset in range(restored.highest_succeeded + 1) if offset not in open_ones]
        return [o for o in claimed if o >= len(self.cells) or (self.cells[o] != GAP and o not in self.ended)]


class Fate(enum.Enum):
    """What becomes of a commit request."""

    TAKEN = "taken at once, the answer comes later"
    LATE = "on its way for long: judged when the answer comes"
    UNANSWERED = "taken, but the answer is lost"
    NOT_SENT = "lost on the way"
    TOO_LARGE = "judged by a broker that takes a few characters only"
    EXPELLED = "judged by a coordinator that has expelled this member, who does not know yet"
    REFUSED = "refused"


class Group:
    """The coordinator: fences commits by generation."""

    def __init__(self, partitions: int, metadata_limit: int) -> None:
        self.logs = [Log() for _ in range(partitions)]
        self.generation = 1
        self._metadata_limit = metadata_limit

    def new_generation(self) -> Generation:
        self.generation += 1
        return Generation(self.generation, "m")

    def judge(self, offsets: Mapping[int, Committed], generation: int, fate: Fate) -> dict[int, CommitFault | None]:
        """What the answer says of each partition; what is taken is written down."""
        if fate is Fate.EXPELLED:
            self.generation += 1
        return {partition: self._judge(partition, one, generation, fate) for partition, one in offsets.items()}

    def _judge(self, partition: int, committed: Committed, generation: int, fate: Fate) -> CommitFault | None:
        if fate is Fate.REFUSED:
            return CommitFault.REFUSED
        if fate is Fate.NOT_SENT:
            return CommitFault.RETRIABLE
        if generation != self.generation:
            return CommitFault.FENCED
        if fate is Fate.TOO_LARGE and len(committed.metadata) > self._metadata_limit:
            return CommitFault.METADATA_TOO_LARGE
        log = self.logs[partition]
        assert log.lost(committed) == [], "I2: committed, but neither ended nor undelivered"
        assert log.committed is None or committed.offset >= log.committed.offset, "a commit moved back"
        log.committed = committed
        return CommitFault.RETRIABLE if fate is Fate.UNANSWERED else None

    def progress_elsewhere(self, partition: int, ended: set[int]) -> None:
        """Another member holds the partition for a while, ends some offsets, commits, and leaves."""
        log = self.logs[partition]
        before = decode_offset_map(*(log.committed or Committed(0, ""))[:2])
        todo = [*before.incompletes, *range(before.highest_succeeded + 1, len(log.cells))]
        left = [offset for offset in todo if log.cells[offset] != GAP and offset not in ended]
        log.ended |= ended & set(todo)
        base = left[0] if left else len(log.cells)
        highest = max((o for o in range(base, len(log.cells)) if o not in left), default=base - 1)
        text = encode_offset_map(base, highest, [o for o in left if o <= highest]) if highest >= base else ""
        log.committed = Committed(base, text)
        assert log.lost(log.committed) == []


@types.coroutine
def _suspend() -> Generator[
    None, Mapping[TopicPartition, CommitFault | None], Mapping[TopicPartition, CommitFault | None]
]:
    return (yield)


class Commits:
    """The real committer over the model's coordinator, moved by hand: a commit waits until :meth:`answer`."""

    def __init__(self, group: Group, options: Options, scheduler: Scheduler) -> None:
        self._group = group
        self.committer = Committer(cast("OffsetStore", self), options, scheduler, lambda: (), lambda: None)
        self._fate = Fate.TAKEN
        self._running: Generator[None, object, object] | None = None
        self._asked: dict[int, Committed] = {}
        self._generation = 0
        self._results: dict[int, CommitFault | None] | None = None
        self._holdings: Mapping[int, Holding] = {}
        self._sampled: dict[Holding, tuple[int, frozenset[int]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a commit is in flight."""
        return self._running is not None

    def begin(self, holdings: Mapping[int, Holding], fate: Fate) -> None:
        """Sample and send what is dirty."""
        self._fate, self._holdings = fate, holdings
        assignments: list[Assignment] = [holding.assignment for holding in holdings.values()]
        self._running = self.committer.commit(assignments).__await__()
        self._go_on(None)

    def answer(self) -> None:
        """The answer arrives; a text that was too large is sampled and sent again."""
        results = self._results
        if results is None:
            results = self._group.judge(self._asked, self._generation, self._fate)
        for holding, said in self._sampled.items():
            fault = results[holding.partition]
            if fault is None:
                holding.acknowledged = said
            elif fault is CommitFault.FENCED and holding.generation == self._generation:
                holding.fenced = True
        self._go_on({TopicPartition(TOPIC, partition): fault for partition, fault in results.items()})

    def _go_on(self, results: Mapping[TopicPartition, CommitFault | None] | None) -> None:
        assert self._running is not None
        self._sampled = {}
        try:
            self._running.send(results)
        except StopIteration:
            self._running = None

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """What the committer sends: checked against the model, then left standing."""
        self._asked = {place.partition: committed for place, committed in offsets.items()}
        self._generation = generation.id
        for partition, committed in self._asked.items():
            holding = self._holdings[partition]
            assert not holding.dropped
            assert not holding.fenced
            assert holding.generation == generation.id, "I7: sent under another generation than its assignment's"
            _check_map(holding, committed)
            self._sampled[holding] = holding.known.said()
        late = self._fate is Fate.LATE
        self._results = None if late else self._group.judge(self._asked, self._generation, self._fate)
        return await _suspend()


def _check_map(holding: Holding, committed: Committed) -> None:
    """I9: what is sent decodes to the ledger, from the base up to some offset."""
    known = holding.known
    said = decode_offset_map(committed.offset, committed.metadata)
    assert said.base_offset == known.base
    for offset in range(said.base_offset, said.highest_succeeded + 1):
        assert known.complete(offset) == (offset not in said.incompletes), f"I9: offset {offset}"
