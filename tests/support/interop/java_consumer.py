"""The Java library as a member of a group, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from tests.support.interop.group import Group, Place
from tests.support.interop.java_programs import JavaPrograms

__all__ = ["JavaConsumer", "java_consumer"]

_CLOSE_TIMEOUT = 120.0


class JavaConsumer:
    """What the Java process said so far.

    ``ran`` and ``stuck`` count the calls of its handler that succeeded and that failed; ``complaints`` is what the
    library logged as errors.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.ran: Counter[Place] = Counter()
        self.stuck: Counter[Place] = Counter()
        self.complaints = ""
        self._closed = False
        self._process = process
        self._readers = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_complaints())]

    def check(self) -> None:
        """Fail the test when the process has ended though nobody told it to."""
        code = self._process.returncode
        assert code is None, f"the Java consumer ended with code {code}; it said:\n{self.complaints}"

    async def close(self) -> None:
        """Close it without a drain, as the library's own ``close()`` does: a last commit, then it leaves the group."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(b"close\n")
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await self._process.wait()
            await asyncio.gather(*self._readers)
        assert self._closed, f"the Java consumer did not close well; it said:\n{self.complaints}"

    async def end(self) -> None:
        """End it at once if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(*self._readers)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, *place = line.split()
            if word == b"closed":
                self._closed = True
            else:
                counter = {b"ran": self.ran, b"stuck": self.stuck}[word]
                counter[Place(int(place[0]), int(place[1]))] += 1

    async def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.complaints += line.decode(errors="replace")


@contextlib.asynccontextmanager
async def java_consumer(
    programs: JavaPrograms, group: Group, directory: Path, stuck: Collection[Place] = (), ordering: str = "KEY"
) -> AsyncIterator[JavaConsumer]:
    """Run it; whatever happens, its process is gone at the end. ``stuck`` are the records that never succeed."""
    places = directory / f"stuck-of-{group.name}"
    places.write_text("".join(f"{place.partition} {place.offset}\n" for place in stuck))
    arguments = (group.bootstrap_servers, group.topic, group.name, ordering, str(places))
    process = await asyncio.create_subprocess_exec(
        *programs.command("StuckConsumer", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    consumer = JavaConsumer(process)
    try:
        yield consumer
    finally:
        await consumer.end()
