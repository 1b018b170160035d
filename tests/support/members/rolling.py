"""Members that are replaced, one after the other or all at once, by those of another revision of the library, or of
another group protocol."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from aioparallel.testing.processes.child import Child, ChildFailed

__all__ = ["ROOT", "Program", "Rolling", "Side", "extract"]

ROOT: Final = Path(__file__).parents[3]
_TIMEOUT: Final = 90.0
"""Seconds for what takes a few on a quiet machine."""


class Side(NamedTuple):
    """What all old members are, or all new ones.

    ``folder``: of the revision; it holds the package, and its own tests with the programs. ``protocol``: of the group,
    see ``tests/__init__.py``.
    """

    folder: Path = ROOT
    protocol: Literal["classic", "consumer"] = "classic"


Program = Callable[[str], Sequence[str]]
"""The module and the arguments of a member, by its name."""


def extract(revision: str, folder: Path) -> Path:
    """The package and the tests of a commit, in ``folder``. Raises RuntimeError where Git does not have it."""
    ran = subprocess.run(
        ("git", "-C", str(ROOT), "archive", revision, "aioparallel", "tests"), capture_output=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"git archive {revision}: {ran.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Rolling:
    """One member for each program, each of either revision. An async context manager: it starts all of them with
    ``first``; leaving kills what still runs. ``logs``: a directory for what they write. ``speaks``: they write a line
    when they can be asked to end."""

    def __init__(self, programs: Sequence[Program], first: Side, logs: Path, *, speaks: bool) -> None:
        self._programs = programs
        self._first = first
        self._logs = logs
        self._speaks = speaks
        self._started = 0
        self._stack = AsyncExitStack()
        self._members: list[Child] = []

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            for program in self._programs:
                self._members.append(await self._start(program, self._first))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def replace(self, number: int, side: Side, *, kill: bool = False) -> None:
        """One member goes, by SIGTERM or SIGKILL, then its successor comes."""
        await self._end(self._members[number], kill=kill)
        self._members[number] = await self._start(self._programs[number], side)

    async def replace_all(self, side: Side) -> None:
        """All go before the first successor comes."""
        await self.end()
        self._members = [await self._start(program, side) for program in self._programs]

    def check(self) -> None:
        """Raises AssertionError where one has ended by itself."""
        for member in self._members:
            assert member.running, f"the {member.name} ended by itself{member.last_words()}"

    async def end(self) -> None:
        """Ask all to end, and wait. Raises ChildFailed where one does not end well."""
        for member in self._members:
            await self._end(member, kill=False)

    async def _end(self, member: Child, *, kill: bool) -> None:
        assert member.running, f"the {member.name} ended by itself{member.last_words()}"
        if kill:
            await member.kill()
        else:
            member.terminate()
            try:
                await member.ended(_TIMEOUT)
            except ChildFailed:
                # One that does not speak may still have been starting, on a busy machine: that is another crash.
                if self._speaks or member.exit_code != -signal.SIGTERM:
                    raise

    async def _start(self, program: Program, side: Side) -> Child:
        self._started += 1
        name = f"member-{self._started}-{'first' if side == self._first else 'other'}"
        # -P: the folder where the tests run is not searched, which holds the package, too.
        command = [sys.executable, "-P", "-m", *program(name)]
        environment = {"PYTHONPATH": str(side.folder), "GROUP_PROTOCOL": side.protocol}
        child = Child(name, command, log=self._logs / f"{name}.log", environment=environment)
        await self._stack.enter_async_context(child)
        if self._speaks:
            await child.line(_TIMEOUT)
        return child
