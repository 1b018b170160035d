"""A share group for tests of its consumer: partitions whose records are locked, and members that are as slow and as
faulty as a test says. Plain, except for the waits of a member."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from aioparallel.group.share_client import (
    Acknowledged,
    AcknowledgeEnded,
    AcknowledgeType,
    Acquired,
    Unreadable,
)
from aioparallel.observe.stats import Contact
from aioparallel.records.record import Record, TopicPartition

__all__ = ["FakeShareClient", "Place", "ShareGroup"]


@dataclass(eq=False)
class Place:
    """One record of the group."""

    partition: TopicPartition
    offset: int
    value: bytes | None
    """None: it cannot be read."""
    count: int = 0
    """Deliveries."""
    member: object = None
    """Who has locked it."""
    ends: float = 0.0
    """When the lock ends."""
    state: str = "available"
    """"available", "acquired", "accepted", "rejected" or "given up"."""


@dataclass(eq=False)
class ShareGroup:
    """All records, and who has which. ``lock_seconds``, ``limit``: the group's configuration."""

    lock_seconds: float = 30.0
    limit: int = 5
    may_renew: bool = True
    places: dict[TopicPartition, list[Place]] = field(default_factory=dict)
    members: list[FakeShareClient] = field(default_factory=list)

    def produce(self, values: Sequence[bytes | None], topic: str = "t", partition: int = 0) -> None:
        """Append records."""
        name = TopicPartition(topic, partition)
        places = self.places.setdefault(name, [])
        for value in values:
            places.append(Place(name, len(places), value))
        for member in self.members:
            member.has_news.set()

    def expire(self, now: float) -> None:
        """End the locks whose time is over."""
        for places in self.places.values():
            for place in places:
                if place.state == "acquired" and place.ends <= now:
                    self._free(place)

    def _free(self, place: Place) -> None:
        place.member = None
        place.state = "given up" if place.count >= self.limit else "available"
        for member in self.members:
            member.has_news.set()

    def acquire(self, member: object, partition: TopicPartition, most: int, now: float) -> list[Place]:
        """Lock records for a member."""
        self.expire(now)
        found = [place for place in self.places.get(partition, ()) if place.state == "available"][:most]
        for place in found:
            place.state, place.member, place.ends = "acquired", member, now + self.lock_seconds
            place.count += 1
        return found

    def acknowledge(
        self, member: object, partition: TopicPartition, offset: int, kind: AcknowledgeType, now: float
    ) -> tuple[Acknowledged, float]:
        """Apply an acknowledgement."""
        self.expire(now)
        place = self.places[partition][offset]
        if place.state != "acquired" or place.member is not member:
            return Acknowledged.NOT_HELD, 0.0
        match kind:
            case AcknowledgeType.ACCEPT:
                place.state, place.member = "accepted", None
            case AcknowledgeType.REJECT:
                place.state, place.member = "rejected", None
            case AcknowledgeType.RELEASE:
                self._free(place)
            case AcknowledgeType.RENEW if not self.may_renew:
                return Acknowledged.RENEW_REFUSED, 0.0
            case AcknowledgeType.RENEW:
                place.ends = now + self.lock_seconds
                return Acknowledged.DONE, place.ends
        return Acknowledged.DONE, 0.0

    def states(self, partition: int = 0) -> list[str]:
        """Of all records of a partition."""
        return [place.state for place in self.places[TopicPartition("t", partition)]]

    def counts(self, partition: int = 0) -> list[int]:
        """The deliveries of all records of a partition."""
        return [place.count for place in self.places[TopicPartition("t", partition)]]


class FakeShareClient:
    """A :class:`~aioparallel.group.share_client.ShareClient` of such a group.

    ``delay``: seconds until an acknowledgement arrives, and again until its answer does.
    """

    def __init__(self, group: ShareGroup, *, delay: float = 0.0) -> None:
        self.group = group
        self.delay = delay
        self.fault: Callable[[AcknowledgeType, int], Acknowledged | None] = lambda kind, offset: None
        """Returns how an acknowledgement ends without having arrived; None: it arrives."""
        self.lose_answer: Callable[[AcknowledgeType, int], bool] = lambda kind, offset: False
        """Whether an acknowledgement arrives, and ends as UNKNOWN."""
        self.fail_fetch: Exception | None = None
        self.has_news = asyncio.Event()
        self.assignments: list[set[TopicPartition]] = []
        """What the group assigns, at once; a test may add to it before the start."""
        self.sent: list[tuple[AcknowledgeType, int]] = []
        self.asked: list[int] = []
        """``most`` of each fetch."""
        self.excluded: set[TopicPartition] = set()
        self.is_stopped = False
        self.dead_letter_topic: str | None = None
        self.failing: set[TopicPartition] = set()
        """Partitions that are refused, as :meth:`contact` says."""
        self.on_its_way = 0
        """Requests to acquire that are not answered yet, as a test says."""
        self.away = False
        """Whether the broker cannot be reached: nothing comes, and nothing is answered."""
        self._kept: list[Acquired] = []
        self._topics: Collection[str] = ()
        self._on_assignment: Callable[[Collection[TopicPartition]], None] | None = None
        self._is_woken = False
        self._refused_renew = False
        self._open: dict[object, tuple[AcknowledgeEnded, asyncio.TimerHandle | None]] = {}
        group.members.append(self)

    # -- the interface ----------------------------------------------------------------------------------

    async def start(self, timeout: float) -> None:
        await asyncio.sleep(0)

    async def stop(self, timeout: float) -> None:
        self.is_stopped = True
        for ended, timer in [*self._open.values()]:
            if timer is not None:
                timer.cancel()
            ended(Acknowledged.NOT_SENT, 0.0)
        self._open.clear()
        self.group.members.remove(self)
        for places in self.group.places.values():
            for place in places:
                if place.member is self:
                    self.group._free(place)
        await asyncio.sleep(0)

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        return {partition for partition in self.group.places if partition.topic in topics}

    def subscribe(self, topics: Collection[str], on_assignment: Callable[[Collection[TopicPartition]], None]) -> None:
        self._topics, self._on_assignment = topics, on_assignment
        asyncio.get_running_loop().call_soon(self.assign)

    def assign(self) -> None:
        """Send an assignment: all partitions."""
        assert self._on_assignment is not None
        self._on_assignment({partition for partition in self.group.places if partition.topic in self._topics})

    async def fetch(self, most: int) -> Sequence[Acquired]:
        assert most >= 1
        self.asked.append(most)
        loop = asyncio.get_running_loop()
        while True:
            if self.fail_fetch is not None:
                raise self.fail_fetch
            if self._kept:
                kept, self._kept = self._kept, []
                return kept
            if self._is_woken:
                self._is_woken = False
                return []
            now = loop.time()
            if not self.away:
                self._kept = self._acquire(most, now)
            if self._kept:
                await asyncio.sleep(self.delay)  # a cancelled fetch loses nothing
                continue
            self.has_news.clear()
            try:
                async with asyncio.timeout(self._until_free(now)):
                    await self.has_news.wait()
            except TimeoutError:
                pass

    def _acquire(self, most: int, now: float) -> list[Acquired]:
        found: list[Acquired] = []
        for partition in self.group.places:
            if partition in self.excluded or most < 1:
                continue
            places = self.group.acquire(self, partition, most, now)
            most -= len(places)
            if not places:
                continue
            readable = [place for place in places if place.value is not None]
            found.append(
                Acquired(
                    partition,
                    [Record(*partition, place.offset, None, place.value, (), 1_000) for place in readable],
                    [place.count for place in readable],
                    now + self.group.lock_seconds,
                    [Unreadable(one.offset, one.offset, "broken", one.count) for one in places if one.value is None],
                )
            )
        return found

    def _until_free(self, now: float) -> float | None:
        ends = [one.ends for some in self.group.places.values() for one in some if one.state == "acquired"]
        return max(0.001, min(ends) - now) if ends else None

    def wake(self) -> None:
        self._is_woken = True
        self.has_news.set()

    def exclude(self, partitions: Collection[TopicPartition]) -> None:
        self.excluded = set(partitions)
        self.has_news.set()

    def acknowledge(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded
    ) -> None:
        self.sent.append((kind, offset))
        loop, token = asyncio.get_running_loop(), object()
        if self.is_stopped:
            loop.call_soon(ended, Acknowledged.NOT_SENT, 0.0)
            return

        def arrives() -> None:
            if self.away:
                self._open[token] = ended, loop.call_later(0.5, arrives)
                return
            fault = self.fault(kind, offset)
            if fault is not None:
                answer = fault, 0.0
            else:
                answer = self.group.acknowledge(self, partition, offset, kind, loop.time())
                if self.lose_answer(kind, offset):
                    answer = Acknowledged.UNKNOWN, 0.0
            self._open[token] = ended, loop.call_later(self.delay, answered, answer)

        def answered(answer: tuple[Acknowledged, float]) -> None:
            del self._open[token]
            self._refused_renew |= answer[0] is Acknowledged.RENEW_REFUSED
            ended(*answer)

        self._open[token] = ended, loop.call_later(self.delay, arrives)

    @property
    def is_fetching(self) -> bool:
        return self.on_its_way > 0

    @property
    def lock_seconds(self) -> float | None:
        return self.group.lock_seconds

    @property
    def delivery_limit(self) -> int | None:
        return self.group.limit

    @property
    def may_renew(self) -> bool:
        return not self._refused_renew

    def contact(self) -> Contact:
        return Contact(fetch=100.0 if self.away else 0.0, failing=tuple(self.failing))

    def break_down(self, chance: random.Random) -> None:
        """Let one of ten acknowledgements fail in some way."""
        faults = [Acknowledged.NOT_SENT, Acknowledged.UNKNOWN, Acknowledged.NOT_HELD]
        self.fault = lambda kind, offset: chance.choice(faults) if chance.random() < 0.05 else None
        self.lose_answer = lambda kind, offset: chance.random() < 0.05
