"""What members and handlers stand on: broker, truth, chance, the story, and what is committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING
from zlib import crc32

from aioparallel.offsets import decode_offset_map
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker

from .loop import RecordingLoop
from .plan import Plan
from .truth import Place, Truth

if TYPE_CHECKING:
    from .members import Member

__all__ = ["GROUP", "NODES", "TOPIC", "Stage", "order_by_value"]

GROUP = "g"
TOPIC = "t"
NODES = 3


class Stage:
    """The director draws from one source of chance, handlers from one of their own: see :meth:`rng_of`."""

    def __init__(self, plan: Plan, loop: RecordingLoop, story: list[str]) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed + 1)
        self.broker = InMemoryBroker(nodes=NODES, rng=random.Random(plan.seed + 2), metadata_limit=plan.metadata_limit)
        self.broker.consumer_groups.accepts_older_epochs = plan.accepts_older_epochs
        self.truth = Truth(
            self._lane_of,
            lambda what: self.tell(lambda: what),
            loop.time,
            begins_late=plan.options["isolation"] == "task",
        )
        self.is_healed = False
        self.attempts: dict[Place, int] = {}
        self.open_resources = 0
        self.digest = 0
        self._story = story
        self.loop = loop
        self.members: list[Member] = []
        self.everybody: list[Member] = []
        self.timers: dict[asyncio.TimerHandle, None] = {}
        self._counts: dict[str, int] = {}
        self._committed: dict[TopicPartition, object] = {}
        self._complete: dict[TopicPartition, set[int]] = {}
        self._has_rung = False

    # -- for members and handlers

    def tell(self, what: Callable[[], str]) -> None:
        """Add to the story."""
        line = f"{self.loop.time():10.4f} {what()}"
        self.digest = (self.digest * 31 + crc32(line.encode())) & (2**64 - 1)
        self._story.append(line)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """A timer of the play's own."""
        handle = self.loop.call_later(seconds, do)
        self.timers[handle] = None

    def rng_of(self, *numbers: int) -> random.Random:
        """Chance that depends on nothing but these."""
        return random.Random(hash((self.plan.seed, *numbers)))

    def delay_of_a_fetch(self) -> float:
        """Seconds that an answer is on its way."""
        if self.plan.calm or self.is_healed or self.rng.random() > 0.1:
            return 0.0
        return self.rng.uniform(0, 0.5)

    def count(self, what: str) -> int:
        """How often it was counted before."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def member_ended(self, member: Member) -> None:
        self.tell(lambda: f"{member.name} has ended: {member.ended_with!r}")
        member.check_end()
        self.members.remove(member)
        for hold in self.truth.holds.values():
            hold.is_over = hold.is_over or hold.member == member.name  # its listener hears no more

    def committed_offsets(self, partition: TopicPartition) -> set[int]:
        """Offsets of the log that are complete by what is committed now."""
        self._look_at_commits()
        return self._complete.get(partition, set())

    def _lane_of(self, key: bytes | None, value: bytes | None) -> object:
        match self.plan.options["ordering"].value:
            case "partition":
                return True
            case "unordered":
                return None
            case _:
                return order_by_value(value) if self.plan.order_by else key

    def _look_at_commits(self) -> None:
        """Whatever is committed as complete is over (I2)."""
        for partition, committed in self.broker.group(GROUP).offsets.items():
            if self._committed.get(partition) is committed:
                continue
            self._committed[partition] = committed
            expected = self.truth.expected.get(partition, set())
            found = decode_offset_map(committed.offset, committed.metadata)
            above = range(found.base_offset, found.highest_succeeded + 1)
            complete = {o for o in expected if o < committed.offset or o in above} - set(found.incompletes)
            self._complete[partition] = complete
            early = sorted(complete - self.truth.over.get(partition, set()))
            if early:
                self.truth.violated(f"lost: {partition} committed at {committed.offset}, {early[:10]} are not over")


def order_by_value(value: bytes | None) -> object:
    """A lane by the value's last digit; none for nines."""
    digit = (value or b"0")[-1:]
    return None if digit == b"9" else digit
