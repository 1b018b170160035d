"""The demo's other processes: started, heard, ended, and never left behind.

A child holds the reading end of a pipe from its parent as standard input. When the pipe closes, because the
parent closed it or because the parent is gone, whatever ended it, the child ends too. Children get a session
of their own, so a Ctrl-C in the terminal reaches only the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Self

from aioparallel.errors import AioparallelError
from aioparallel.event_loop import loop_factory

__all__ = ["Child", "announce", "run_until_parent_ends"]

READY_TIMEOUT = 30.0  # seconds a child has to announce itself
LEAVE_TIMEOUT = 2.0  # seconds a child takes at most to end once its pipe closed
STOP_TIMEOUT = 5.0  # seconds until its parent no longer waits for that


class Child:
    """One process running a module of the demo; what it writes to standard error goes to a file."""

    def __init__(self, name: str, module: str, *arguments: str, log: Path) -> None:
        self.name = name
        self._command = (sys.executable, "-m", module, *arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The started process."""
        if self._process is None:
            raise AioparallelError(f"the {self.name} was not started")
        return self._process

    async def __aenter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def announced(self) -> str:
        """What the child says when it is ready.

        Raises AioparallelError when it ends, or says nothing for 30 seconds.
        """
        output = self.process.stdout
        assert output is not None  # a pipe was asked for
        try:
            line = await asyncio.wait_for(output.readline(), READY_TIMEOUT)
        except TimeoutError:
            raise AioparallelError(
                f"the {self.name} did not come up within {READY_TIMEOUT:g} s; see {self._log}"
            ) from None
        if not line:
            await self.ended()
        return line.decode().strip()

    async def ended(self) -> None:
        """Wait until the child ends by itself.

        Raises AioparallelError when its exit code is not 0.
        """
        code = await self.process.wait()
        if code:
            raise AioparallelError(f"the {self.name} failed (exit code {code}): {last_line(self._log)}")

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.returncode is None

    async def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        if self.running:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """Close its pipe and wait; kill it when it does not end in 5 seconds."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            await self.kill()


def last_line(log: Path) -> str:
    """The last line a child wrote to its log, and where the rest is."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (see {log})"


def announce(line: str) -> None:
    """In the child: tell the parent that this process is ready."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def run_until_parent_ends(work: Coroutine[object, None, None]) -> None:
    """In the child: run ``work`` on uvloop where there is one, and cancel it when the parent's pipe closes."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(until_pipe_closes(work))


async def until_pipe_closes(work: Coroutine[object, None, None]) -> None:
    """Run ``work``; cancel it when standard input closes, and leave by force when it does not take notice."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    pipe = sys.stdin.fileno()
    closed = False

    def readable() -> None:
        nonlocal closed
        if os.read(pipe, 1024):
            return
        closed = True
        loop.remove_reader(pipe)
        task.cancel()
        # With the parent its broker may be gone as well, and a polite goodbye to it can take long.
        loop.call_later(LEAVE_TIMEOUT, os._exit, 1)

    loop.add_reader(pipe, readable)
    try:
        await task
    except asyncio.CancelledError:
        if not closed:
            raise
    finally:
        loop.remove_reader(pipe)
