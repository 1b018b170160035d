"""A child process to communicate with, pause and kill, which ends with this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from aioparallel.event_loop.waiting import to_the_end
from aioparallel.records.errors import AioparallelError
from aioparallel.testing.processes.guarded import check_platform, start_guard

__all__ = ["Child", "ChildFailed"]

_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 5.0
_MOMENT: Final = 1.0
"""Seconds from the end of a child's input to the report that it has ended."""
_LINE_LIMIT: Final = 1 << 24
"""Longest line to read, in bytes."""
_SHOWN: Final = 500
"""Characters of the last log line in a message."""
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class ChildFailed(AioparallelError):
    """A child process did not do what was requested. The message ends with the last line of its log."""


class Child:
    """A process with a guard (see ``guard.py``). An async context manager; leaving it stops the process.

    ``name``: for messages. ``command``: program and arguments. ``log``: a file for its standard error. ``environment``:
    additional variables. ``directory``: its working directory, by default that of this process.

    Its standard input and output are pipes, see :meth:`say` and :meth:`line`. It leads a process group, so Ctrl-C in
    the terminal does not reach it, and its own children end with it. When this process ends in any way, it is killed.
    Linux and macOS. Entering raises ChildFailed if the command cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] = _NONE,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = environment
        self._directory = directory
        self._pid = 0
        # The exit code, when the process has ended. None before the start.
        self._over: asyncio.Future[int] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._answers: asyncio.Task[None] | None = None
        self._is_answered = asyncio.Event()
        self._refusal = ""
        self._streams: list[asyncio.StreamWriter] = []

    @classmethod
    def of_module(
        cls, name: str, module: str, *arguments: str, log: Path, environment: Mapping[str, str] = _NONE
    ) -> Self:
        """A child that runs a Python module as a program."""
        return cls(name, [sys.executable, "-m", module, *arguments], log=log, environment=environment)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the process, once."""
        check_platform()
        if self._over is not None:
            raise ChildFailed(f"the {self.name} was started before")
        self._over = asyncio.get_running_loop().create_future()
        self._control, control_of_guard = socket.socketpair()
        self._control.setblocking(False)
        try:
            with control_of_guard:
                await self._start_guard(control_of_guard)
            await self._start_command()
        except BaseException:
            await self.stop(0.0)
            raise

    async def _start_guard(self, control: socket.socket) -> None:
        _, self._input, their_input = await self._stream()
        with their_input:
            self._output, _, their_output = await self._stream()
            with their_output, self.log.open("ab") as log:
                self._guard = start_guard(
                    control,
                    stdin=their_input.fileno(),
                    stdout=their_output.fileno(),
                    stderr=log.fileno(),
                    environment={**os.environ, **self._environment},
                    works_in=self._directory,
                )

    async def _stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]:
        """A stream, and the socket at its other end.

        Sockets rather than pipes: asyncio has public streams for them, and they can be closed even if a process that
        the child has left behind still holds the other end.
        """
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._streams.append(writer)
        return reader, writer, theirs

    async def _start_command(self) -> None:
        self._answers = asyncio.get_running_loop().create_task(self._read_answers(self._started()))
        self._ask({"do": "run", "command": self._command, "log": str(self.log.absolute()), "through": True})
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._is_answered.wait()
        except TimeoutError:
            self._refusal = f"no answer within {_TIMEOUT:g} s"
        if self._refusal:
            raise ChildFailed(f"the {self.name} could not be started: {self._refusal}")

    def _ask(self, request: dict[str, object]) -> None:
        """Send a request to the guard. It reads at once, and only reports the start and the end of the command."""
        with contextlib.suppress(ConnectionError):  # the guard ends
            # Wait for buffer space, for hundreds of requests at once.
            select.select([], [self._control], [], _MOMENT)
            self._control.send(json.dumps(request).encode() + b"\n")

    async def _read_answers(self, over: asyncio.Future[int]) -> None:
        """Read all messages of the guard."""
        code, unread = None, b""
        with contextlib.suppress(OSError):
            while data := await asyncio.get_running_loop().sock_recv(self._control, 65_536):
                *lines, unread = (unread + data).split(b"\n")
                for message in map(json.loads, lines):
                    self._pid = message.get("pid", self._pid)
                    self._refusal = message.get("error", "")
                    code = message.get("exit_code", code)
                    self._is_answered.set()
        if not self._is_answered.is_set():
            self._refusal = f"its guard has ended; see {self.log}"
            self._is_answered.set()
        if code is None and self._pid:
            # The guard was killed. Linux then kills the child, but not its process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        over.set_result(-signal.SIGKILL if code is None else code)

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        self._started()
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended yet."""
        return self._over is not None and not self._over.done()

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._over.result() if self._over is not None and self._over.done() else None

    async def line(self, timeout: float = _TIMEOUT) -> str:
        """The next line of its standard output, without the line end.

        Raises ChildFailed if it has ended or closed its output, or after ``timeout`` seconds. A process that writes an
        endless line is killed.
        """
        over = self._started()
        try:
            async with asyncio.timeout(timeout):
                line = await self._read_line()
                if line is None:
                    await asyncio.wait([over])
        except TimeoutError:
            raise ChildFailed(f"the {self.name} said nothing for {timeout:g} s{self.last_words()}") from None
        if line is None:
            raise self._has_ended()
        return line

    async def lines(self) -> AsyncIterator[str]:
        """The lines of its standard output, until it closes that. They must be read: a process blocks when its output
        is full."""
        while (line := await self._read_line()) is not None:
            yield line

    async def _read_line(self) -> str | None:
        """The next line; None at the end of the output."""
        self._started()
        try:
            line = await self._output.readline()
        except ValueError as error:
            await self.kill()
            raise ChildFailed(f"the {self.name} wrote a line that is too long, and was killed ({error})") from error
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    async def say(self, line: str, timeout: float = _TIMEOUT) -> None:
        """Write a line to its standard input. Raises ChildFailed if it has ended, or reads nothing for ``timeout``
        seconds."""
        over = self._started()
        try:
            async with asyncio.timeout(timeout):
                self._input.write(line.encode() + b"\n")
                await self._input.drain()
        except TimeoutError:
            raise ChildFailed(f"the {self.name} read nothing for {timeout:g} s{self.last_words()}") from None
        except (OSError, RuntimeError):  # RuntimeError: uvloop's, for a closed transport
            await asyncio.wait([over], timeout=_MOMENT)
            if self.running:
                raise ChildFailed(f"the {self.name} has closed its standard input{self.last_words()}") from None
            raise self._has_ended() from None

    async def ended(self, timeout: float | None = None) -> None:
        """Wait until it ends by itself. Raises ChildFailed for a non-zero exit code, and after ``timeout`` seconds."""
        await asyncio.wait([self._started()], timeout=timeout)
        if self.running:
            raise ChildFailed(f"the {self.name} did not end within {timeout or 0:g} s{self.last_words()}")
        if self.exit_code:
            raise ChildFailed(f"the {self.name} failed (exit code {self.exit_code}){self.last_words()}")

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        await asyncio.wait([self._started()])

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.signal(signal.SIGTERM)

    def pause(self) -> None:
        """Send SIGSTOP, so that it hangs."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing if it has ended."""
        if self.running:
            self._ask({"do": "signal", "number": int(number)})

    async def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Close its standard input and wait for its end; kill it after ``timeout`` seconds. Closes everything, even if
        cancelled. May be called again."""
        if self._over is None:
            return
        try:
            if self._answers is not None:
                self._input.close()
                await asyncio.wait([self._answers], timeout=timeout)
        finally:
            await to_the_end(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the guard kills the child and ends
        if self._guard is not None and self._answers is not None:
            await asyncio.wait([self._answers], timeout=_TIMEOUT)
            if not self._answers.done():
                self._guard.kill()
                await asyncio.wait([self._answers])
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait)
        self._control.close()
        for stream in self._streams:
            stream.transport.abort()  # do not wait for unread input

    def last_words(self) -> str:
        """The last line of its log and the log's path, as the end of a sentence."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f": {lines[-1][:_SHOWN]} (see {self.log})" if lines else "; its log is empty"

    def _has_ended(self) -> ChildFailed:
        return ChildFailed(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}")

    def _started(self) -> asyncio.Future[int]:
        if self._over is None:
            raise ChildFailed(f"the {self.name} was not started")
        return self._over
