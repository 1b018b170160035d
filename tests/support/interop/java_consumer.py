"""The Java library as a member of a group, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from aioparallel.testing.processes import Child
from tests.support.interop.group import Group, Place
from tests.support.interop.java_programs import JavaPrograms
from tests.support.waiting import DEADLINE

__all__ = ["JavaConsumer", "java_consumer"]


class JavaConsumer:
    """What the Java process said so far.

    ``ran`` and ``stuck`` count the calls of its handler that succeeded and that failed.
    """

    def __init__(self, child: Child) -> None:
        self.ran: Counter[Place] = Counter()
        self.stuck: Counter[Place] = Counter()
        self._closed = False
        self._child = child
        self._heard = asyncio.create_task(self._hear())

    @property
    def complaints(self) -> str:
        """What the library logged as errors."""
        return self._child.log.read_text(errors="replace")

    def check(self) -> None:
        """Fail the test if the process has ended by itself."""
        assert self._child.running, f"the Java consumer has ended; it said:\n{self.complaints}"

    async def close(self) -> None:
        """Close it without a drain, as the library's own ``close()`` does: a last commit, then it leaves the group."""
        self.check()
        await self._child.say("close")
        await self._child.ended(DEADLINE)
        await self._heard
        assert self._closed, f"the Java consumer did not close well; it said:\n{self.complaints}"

    async def _hear(self) -> None:
        """Count, until it ends."""
        async for line in self._child.lines():
            word, *place = line.split()
            if word == "closed":
                self._closed = True
            else:
                counter = {"ran": self.ran, "stuck": self.stuck}[word]
                counter[Place(int(place[0]), int(place[1]))] += 1


@contextlib.asynccontextmanager
async def java_consumer(
    programs: JavaPrograms, group: Group, directory: Path, stuck: Collection[Place] = (), ordering: str = "KEY"
) -> AsyncIterator[JavaConsumer]:
    """Run it; whatever happens, its process is gone at the end. ``stuck`` are the records that never succeed."""
    places = directory / f"stuck-of-{group.name}"
    places.write_text("".join(f"{place.partition} {place.offset}\n" for place in stuck))
    arguments = (group.bootstrap_servers, group.topic, group.name, ordering, str(places))
    log = directory / f"java-of-{group.name}-{len(stuck)}.log"
    async with Child("Java consumer", programs.command("StuckConsumer", *arguments), log=log) as child:
        yield JavaConsumer(child)
