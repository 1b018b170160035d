"""A group under load whose members are replaced by others, in all ways in which that is done, and back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from aioparallel.testing.event_log import Event, EventKind, EventTail
from tests.support.kafka.filling import Message, fill, numbered
from tests.support.kafka.reading import committed
from tests.support.members.rolling import Program, Rolling, Side
from tests.support.waiting import until

__all__ = ["KEYS", "PARTITIONS", "Done", "Events", "done_by_commits", "spread", "upgrade_and_back"]

PARTITIONS, KEYS = 8, 1_000
PORTION, EVERY = 400, 0.4
"""Records that are written at once, and the seconds from one such portion to the next."""
STAYS = 4 * PORTION
"""Records that must be done before the next member is replaced."""
Done = Callable[[], Awaitable[int]]


async def upgrade_and_back(
    servers: str, topic: str, messages: Iterator[Message], programs: Sequence[Program], done: Done, older: Side,
    newer: Side, logs: Path, *, speaks: bool = True,
) -> tuple[int, float]:  # fmt: skip
    """Write without end while members are replaced. Returns how many were written, all of them done in the end, and
    when the first member was killed, by CLOCK_MONOTONIC."""
    written, is_enough, killed = 0, False, 0.0

    async def feed() -> None:
        nonlocal written
        while not is_enough:
            portion = list(itertools.islice(messages, PORTION))
            await asyncio.to_thread(fill, servers, topic, portion)
            written += len(portion)
            await asyncio.sleep(EVERY)

    async with Rolling(programs, older, logs, speaks=speaks) as members:

        async def come_on(goal: int) -> None:
            async def is_there() -> bool:
                members.check()
                assert is_enough or not feeding.done(), feeding
                return await done() >= goal

            await until(is_there, 180, what=lambda: f"{goal} of {written} records done")

        async def stay() -> None:
            await come_on(await done() + STAYS)

        feeding = asyncio.create_task(feed())
        try:
            await stay()
            for side in (newer, older):  # one after the other, and back
                for number in range(len(programs)):
                    await members.replace(number, side)
                    await stay()
            await members.replace_all(newer)
            await stay()
            killed = time.monotonic()
            await members.replace(0, older, kill=True)
            await stay()
            await members.replace(0, newer, kill=True)
            await stay()
            await members.replace_all(older)
            await stay()
        finally:
            is_enough = True
            await feeding
        await come_on(written)
        await members.end()
    return written, killed


class Events:
    """What handlers did, by the event logs of their members. ``all``: with the names of these."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, EventTail] = {}
        self.all: list[tuple[str, Event]] = []
        self.ended: Counter[tuple[int, int]] = Counter()

    def file(self, name: str) -> str:
        """Where a member writes."""
        return str(self._folder / f"{name}.events")

    async def read(self) -> int:
        """How many records have ended, in any member."""
        for file in self._folder.glob("*.events"):
            for event in self._tails.setdefault(file, EventTail(file)).new():
                self.all.append((file.stem, event))
                if event.kind is EventKind.ENDED:
                    self.ended[event.partition, event.offset] += 1
        return len(self.ended)


def spread(size: int) -> Iterator[Message]:
    """Numbered records without end; record ``n`` is in partition ``n % 8``."""
    for n, message in enumerate(numbered(10_000_000, KEYS, size)):
        yield message._replace(partition=n % PARTITIONS)


def done_by_commits(servers: str, source: str) -> Done:
    """How many records are committed by the group of the source."""

    async def offsets() -> int:
        found = await committed(servers, f"{source}-group")
        return sum(one.offset for one in found.values())

    return offsets
