"""The members of a group that copies, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypedDict

from aioparallel.testing.event_log import Event, read_events
from aioparallel.testing.processes import Child
from tests.support.copying.job import Acknowledged, CopyJob, acknowledged_in, again_in
from tests.support.waiting import until

__all__ = ["Member", "Members", "Sample"]

_END_TIMEOUT: Final = 60.0


class Sample(TypedDict):
    """What a member says of itself ten times a second, as JSON."""

    succeeded: int
    lag: dict[str, int | None]
    """By partition of the source: records that are not complete."""


class Member:
    """One member. Its warnings and errors, and its acknowledged outputs, are in separate files."""

    def __init__(self, job: CopyJob, directory: Path, name: str) -> None:
        self.killed = False
        self.last: Sample | None = None
        self._events = directory / f"{name}.events"
        arguments = [job.text(), str(self._events)]
        self.child = Child.of_module(name, "tests.support.copying.member", *arguments, log=directory / f"{name}.log")

    async def start(self) -> None:
        """Returns when the process has been started."""
        await self.child.start()
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        async for line in self.child.lines():
            if line.endswith("}"):  # SIGKILL may have cut it
                self.last = json.loads(line)

    async def kill(self) -> None:
        """SIGKILL. Returns when it has ended."""
        self.killed = True
        await self.child.kill()

    async def end(self) -> None:
        """Let it drain, commit and leave. Raises ChildFailed when it does not end well within a minute."""
        self.child.terminate()
        await self.child.ended(_END_TIMEOUT)

    async def close(self) -> None:
        """Leave no process behind."""
        await self.child.stop(0.0)
        await self._hearing

    def check(self) -> None:
        """Raises AssertionError if it has ended without being killed."""
        assert self.killed or self.child.running, f"a member has ended. {self.log_tail()}"

    def events(self) -> list[Event]:
        """See ``job.py``; none while it has not begun."""
        return read_events(self._events)

    def log(self) -> str:
        """Its warnings and errors."""
        return self.child.log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last of them, for messages."""
        return f"The log of {self.child.name} ends with:\n" + "\n".join(self.log().splitlines()[-15:])


class Members:
    """The members of one group; an async context manager that leaves none behind."""

    def __init__(self, job: CopyJob, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self.all: list[Member] = []

    @property
    def living(self) -> list[Member]:
        """Those not killed."""
        return [member for member in self.all if not member.killed]

    async def start(self) -> None:
        """One more."""
        member = Member(self._job, self._directory, f"member-{len(self.all) + 1}")
        await member.start()
        self.all.append(member)

    async def hurry(self) -> None:
        """No more pace."""
        await self.until_all(lambda sample: True)  # who speaks listens
        for member in self.living:
            member.child.signal(signal.SIGUSR1)

    def left(self) -> dict[int, int]:
        """Records that are not complete, by partition of the source; partitions without an owner are left out."""
        known: dict[int, int] = {}
        for member in self.living:
            member.check()
            for partition, lag in (member.last["lag"] if member.last else {}).items():
                if lag is not None:
                    known[int(partition)] = lag
        return known

    def acknowledged(self) -> list[Acknowledged]:
        """To all of them, in order of time."""
        return sorted(one for member in self.all for one in acknowledged_in(member.events()))

    def again(self) -> Counter[int]:
        """How often each number was tried again, because its delivery had given up; 0 for the others."""
        return Counter(number for member in self.all for number in again_in(member.events()))

    def log_tails(self) -> str:
        """For messages."""
        return "\n".join(member.log_tail() for member in self.all)

    async def until_all(self, do: Callable[[Sample], object]) -> None:
        """Until every living member says so of itself. Raises AssertionError."""

        def all_do() -> bool:
            self.left()
            return all(member.last and do(member.last) for member in self.living)

        await until(all_do, what=self.log_tails)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.all:
            await member.close()
