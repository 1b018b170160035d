"""The tracking machine by itself: any course of markers, looks, faults and restarts, against what must be true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aioparallel.group.assignment import Assignment
from aioparallel.offsets import Ledger, OffsetMap
from aioparallel.queues.kmq import tracking
from aioparallel.queues.kmq.markers import END, key_of, read_marker, start_of
from aioparallel.queues.kmq.redelivery import NotSent
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracking import Tracking
from aioparallel.records.record import Record, TopicPartition
from tests.support.virtual_time import VirtualLoop

PLACE = TopicPartition("q-markers", 0)
STEPS = 400
COURSES = 60
USE_NOW_AFTER = 1.0
NEWS = 3_500
"""Milliseconds from an end marker until it is known that there is one, and until what was due then is sent."""


class Course:
    """One partition of markers, who writes them, and trackers one after the other.

    It stands in for the client and for what delivers again; all clocks are the loop's.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log: list[Record] = []
        self.ended: set[int] = set()
        """Records whose end stands in the log."""
        self.due: dict[int, float] = {}
        """Of all that were begun: when the newest lease in the log ends, seconds."""
        self.redelivered: list[int] = []
        self.unwritten: list[int] = []
        """End markers of what was delivered again that are on their way."""
        self.is_silent = False
        self.told_at = 0.0
        self.told = 0
        self.errors: list[BaseException] = []
        self.committed: tuple[int, OffsetMap | None] = 0, None
        self.committed_at = 0
        """How far was read then."""
        self.offset = 0
        self.begin()

    @property
    def now(self) -> float:
        """Seconds; the epoch begins with the loop."""
        return asyncio.get_running_loop().time()

    # -- the log

    def write(self, key: bytes, value: bytes) -> None:
        """Now and then there is a gap before it: an aborted transaction, or what compaction took."""
        if self.chance.random() < 0.1:
            self.offset += self.chance.randrange(1, 4)
        self.log.append(Record(*PLACE, self.offset, key, value, (), int(self.now * 1_000)))
        self.offset += 1

    def start(self, offset: int, lease: float) -> None:
        """A first delivery, a second one, or an extension."""
        self.write(key_of(0, offset), start_of(int(lease * 1_000)))
        self.due[offset] = self.now + lease
        self.ended.discard(offset)

    def end(self, offset: int) -> None:
        """Perhaps of a record that nobody has begun."""
        self.write(key_of(0, offset), END)
        self.ended.add(offset)

    # -- a client

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The end of the log, when it was told last."""
        return self.told

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Since it was."""
        return self.now - self.told_at

    # -- what delivers again

    async def redeliver(
        self,
        partition: int,
        offsets: Sequence[int],
        is_wanted: Callable[[int], bool],
        settled: Callable[[int], None],
    ) -> NotSent:
        """Some cannot be read, some cannot be sent, of some the end marker is lost."""
        await asyncio.sleep(self.chance.random())
        soon, unread = list[int](), list[int]()
        for offset in offsets:
            match self.chance.randrange(6):
                case 0:
                    soon.append(offset)
                case 1:
                    unread.append(offset)
                case _ if is_wanted(offset):
                    self.check_due(offset)
                    self.redelivered.append(offset)
                    settled(offset)
                    self.unwritten.append(offset)
        return NotSent(soon, unread)

    @property
    def ends(self) -> Any:
        """The end markers of what has been delivered again."""
        return SimpleNamespace(write=lambda partition, offset: self.unwritten.append(offset))

    @property
    def none_away(self) -> asyncio.Event:
        """No dead letter is on its way."""
        event = asyncio.Event()
        event.set()
        return event

    def check_due(self, offset: int) -> None:
        """What was read says that somebody has it no more; and all was read that was there when the tracker began. The
        clock says so only where an end that is not read is news."""
        read = [one for one in self.log if one.offset < self.assignment.ledger.position]
        assert self.assignment.ledger.position >= self.began_with
        marks = [(one, read_marker(one.key, one.value)) for one in read]
        last, marker = [(one, marker) for one, marker in marks if marker is not None and marker.offset == offset][-1]
        assert marker is not None
        assert marker.lease is not None, f"{offset} has ended"
        over = last.timestamp + marker.lease
        assert over <= self.now * 1_000 + 1, f"{offset} is somebody's"
        unread = [one for one in self.log if one.offset >= self.assignment.ledger.position]
        if any(one.key == last.key and one.value == END and one.timestamp < self.now * 1_000 - NEWS for one in unread):
            assert over <= max(one.timestamp for one in read), f"{offset} has ended long ago"

    # -- a tracker

    def begin(self) -> None:
        """From what was committed."""
        base, restored = self.committed
        self.assignment = Assignment(PLACE)
        self.assignment.ledger = Ledger(base, restored)
        self.assignment.opened = True
        self.began_with = self.offset
        self.told = self.offset
        self.tracking = Tracking(QueueTopics("q", None, None), 3, USE_NOW_AFTER, "drop_value")
        self.tracking._consumer = cast("Any", SimpleNamespace(client=self, fail=self.errors.append))
        self.tracking.redeliverer = cast("Any", self)
        self.watching = asyncio.create_task(self.tracking.work())

    async def stop(self) -> None:
        """It dies; what it delivered may have its end marker or not."""
        self.assignment.dropped = True
        self.watching.cancel()
        await asyncio.wait([self.watching])

    def fetch(self, at_most: int) -> None:
        """Read on, unless the leader is silent."""
        if self.is_silent:
            return
        self.told, self.told_at = self.offset, self.now
        position = self.assignment.ledger.position
        found = [one for one in self.log if one.offset >= position][:at_most]
        is_all = not found or found[-1] is self.log[-1]
        wanted = self.assignment.register(found, self.offset if is_all else found[-1].offset + 1)
        self.tracking.admit(self.assignment, wanted)
        self.check_position()

    def check_position(self) -> None:
        """The position that would be committed passes no marker that is open, by what was read."""
        newest: dict[int, int] = {}
        ledger = self.assignment.ledger
        read_until = max(ledger.position, self.committed_at)  # by this tracker, or one before it
        for one in self.log:
            if one.offset < read_until:
                marker = read_marker(one.key, one.value)
                assert marker is not None
                newest.pop(marker.offset, None)
                if marker.lease is not None:
                    newest[marker.offset] = one.offset
        if ledger.position == read_until:
            assert set(newest.values()) == set(ledger.incompletes)
        assert ledger.next_commit <= min(newest.values(), default=self.offset)

    def commit(self) -> None:
        """With or without the map: a broker may refuse its size."""
        ledger = self.assignment.ledger
        self.committed_at = max(self.committed_at, ledger.position)
        self.committed = ledger.next_commit, ledger.snapshot() if self.chance.random() < 0.7 else None

    # -- all of it

    async def step(self) -> None:
        """One thing that happens."""
        chance, offset = self.chance, self.chance.randrange(40)
        match chance.randrange(12):
            case 0 | 1 | 2:
                self.start(offset, chance.choice([0.001, 0.5, 3.0, 20.0]))
            case 3 | 4:
                self.end(offset)
            case 5 | 6 | 7:
                self.fetch(chance.choice([1, 5, 100]))
            case 8:
                self.commit()
            case 9 if self.unwritten:
                self.write_end()
            case 10 if chance.random() < 0.2:
                await self.stop()
                self.begin()
            case _:
                self.is_silent = chance.random() < 0.1
        await asyncio.sleep(chance.choice([0.0, 0.01, 0.3, 2.5]))

    def write_end(self) -> None:
        """Or lose it."""
        offset = self.unwritten.pop(0)
        if self.chance.random() < 0.8:
            self.end(offset)

    async def run(self) -> None:
        """Then quiet, until nothing is open."""
        for _ in range(STEPS):
            await self.step()
            assert not self.errors
        self.is_silent = False
        for _ in range(3_000):
            self.fetch(100)
            while self.unwritten:
                self.write_end()
            await asyncio.sleep(0.5)
            if not set(self.due) - self.ended:
                break
        assert not set(self.due) - self.ended, "never delivered again"
        self.fetch(1_000)
        self.commit()
        assert self.committed[0] == self.assignment.ledger.position == self.offset
        assert not self.errors
        await self.stop()


@pytest.mark.parametrize("seed", range(COURSES))
def test_any_course_of_markers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record that was begun and not ended is lost, none is delivered again while its newest lease runs, by what was
    read, and the committed position passes no marker that is open."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        monkeypatch.setattr(tracking, "steady_time", loop.time)

        async def run() -> int:
            course = Course(seed)
            await course.run()
            return len(course.redelivered)

        assert runner.run(run()) > 5
