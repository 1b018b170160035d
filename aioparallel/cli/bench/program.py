"""A contestant's process, seen from the benchmark: started, asked for runs, ended, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from aioparallel.cli.bench.model import Contestant, Run
from aioparallel.errors import AioparallelError

__all__ = ["Program", "ProgramFailed", "Reaper"]

STOP_TIMEOUT: Final = 5.0
"""Seconds until a process whose pipe closed has ended, else it is killed."""
REAPER_SCRIPT: Final = Path(__file__).with_name("reaper.py")


class ProgramFailed(AioparallelError):
    """A contestant's program did not do its run."""


class Reaper:
    """Kills the processes that are still there when this process ends, see ``reaper.py``. A context manager."""

    def __enter__(self) -> Self:
        # -I and -S: nothing of the user's environment may break it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(REAPER_SCRIPT)], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None  # a pipe was asked for
        self._process.stdin.close()
        self._process.wait()

    def watch(self, pid: int) -> None:
        """A process group was started."""
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """It has ended."""
        self._tell(f"-{pid}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # Without a reaper the runs go on; only a killed benchmark would leave something behind.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())


class Program:
    """One contestant's process through all rounds of a case; it is started by its first run, so that its start disturbs
    nobody's. What it writes to standard error goes to ``log``."""

    def __init__(self, contestant: Contestant, work: Path, log: Path, reaper: Reaper) -> None:
        self._contestant = contestant
        self._work = work
        self._log = log
        self._reaper = reaper
        self._process: asyncio.subprocess.Process | None = None
        self._watched = False
        self._busy = False

    @property
    def ended(self) -> bool:
        """Whether it was started and is gone."""
        return self._process is not None and self._process.returncode is not None

    async def run(self, number: int, group: str, evidence: Path, deadline: float) -> Run:
        """One round. Raises ProgramFailed when it cannot be started, ends, tells of an error, or does not answer
        within ``deadline`` seconds (it is killed then)."""
        order = {"round": number, "group": group, "evidence": str(evidence)}
        self._busy = True
        line = await self._ask(json.dumps(order).encode() + b"\n", deadline)
        self._busy = False
        try:
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise ProgramFailed(f"its run failed: {answer['error']}{self._said()}")
            run = Run(**answer)
        except (ValueError, TypeError) as error:
            raise ProgramFailed(f"its answer is not understood ({error}): {line[:200]!r}{self._said()}") from error
        if run.round != number:
            raise ProgramFailed(f"it answered for round {run.round} when asked for round {number}")
        return run

    async def _ask(self, order: bytes, deadline: float) -> bytes:
        process = self._process or await self._start()
        assert process.stdin is not None  # pipes were asked for
        assert process.stdout is not None
        try:
            async with asyncio.timeout(deadline):
                process.stdin.write(order)
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self._kill(process)
            raise ProgramFailed(f"it did not answer within {deadline:g} s and was killed{self._said()}") from None
        except ValueError as error:  # a line without an end
            await self._kill(process)
            raise ProgramFailed(f"its answer is too long ({error}); it was killed{self._said()}") from error
        except ConnectionError:
            line = b""
        if not line:
            await self._finish(process)
            raise ProgramFailed(f"its process ended with exit code {process.returncode}{self._said()}")
        return line

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            with self._log.open("ab") as log:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._contestant.command,
                    str(self._work),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self._contestant.environment},
                    # A Ctrl-C in the terminal reaches only the benchmark, and what the process starts ends with it.
                    start_new_session=True,
                )
        except OSError as error:
            raise ProgramFailed(f"it could not be started: {error}") from error
        self._reaper.watch(process.pid)
        self._watched = True
        return process

    async def stop(self) -> None:
        """End it: at once in the middle of a run, otherwise by closing its pipe, and by force after 5 seconds."""
        if self._process is None:
            return
        if self._busy:
            await self._kill(self._process)
        await self._finish(self._process)

    async def _finish(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            await self._kill(process)
        self._forget(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        self._forget(process)

    def _forget(self, process: asyncio.subprocess.Process) -> None:
        if self._watched:
            self._watched = False
            self._reaper.forget(process.pid)

    def _said(self) -> str:
        """Its last words, as the end of a sentence."""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"; its last line: {lines[-1][:300]}" if lines else ""
