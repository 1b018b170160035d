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
from types import MappingProxyType, TracebackType
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
        self._process: _Process | None = None

    @classmethod
    def of_module(
        cls, name: str, module: str, *arguments: str, log: Path, environment: Mapping[str, str] = _NONE
    ) -> Self:
        """A child that runs a Python module as a program."""
        return cls(name, [sys.executable, "-m", module, *arguments], log=log, environment=environment)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the process, once."""
        check_platform()
        if self._process is not None:
            raise ChildFailed(f"the {self.name} was started before")
        self._process = process = _Process(self)
        try:
            await process.begin(self._command, self._environment, self._directory)
        except BaseException:
            await process.end(0.0)
            raise

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended yet."""
        return self._process is not None and not self._process.over.done()

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        over = None if self._process is None else self._process.over
        return over.result() if over is not None and over.done() else None

    async def line(self, timeout: float = _TIMEOUT) -> str:
        """The next line of its standard output, without the line end.

        Raises ChildFailed if it has ended or closed its output, or after ``timeout`` seconds. A process that writes an
        endless line is killed.
        """
        process = self._started()
        try:
            async with asyncio.timeout(timeout):
                line = await self._read_line()
                if line is None:
                    await asyncio.wait([process.over])
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
        try:
            line = await self._started().output.readline()
        except ValueError as error:
            await self.kill()
            raise ChildFailed(f"the {self.name} wrote a line that is too long, and was killed ({error})") from error
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    async def say(self, line: str, timeout: float = _TIMEOUT) -> None:
        """Write a line to its standard input. Raises ChildFailed if it has ended, or reads nothing for ``timeout``
        seconds."""
        process = self._started()
        try:
            async with asyncio.timeout(timeout):
                process.input.write(line.encode() + b"\n")
                await process.input.drain()
        except TimeoutError:
            raise ChildFailed(f"the {self.name} read nothing for {timeout:g} s{self.last_words()}") from None
        except (OSError, RuntimeError):  # RuntimeError: uvloop's, for a closed transport
            await asyncio.wait([process.over], timeout=_MOMENT)
            if self.running:
                raise ChildFailed(f"the {self.name} has closed its standard input{self.last_words()}") from None
            raise self._has_ended() from None

    async def ended(self, timeout: float | None = None) -> None:
        """Wait until it ends by itself. Raises ChildFailed for a non-zero exit code, and after ``timeout`` seconds."""
        await asyncio.wait([self._started().over], timeout=timeout)
        if self.running:
            raise ChildFailed(f"the {self.name} did not end within {timeout or 0:g} s{self.last_words()}")
        if self.exit_code:
            raise ChildFailed(f"the {self.name} failed (exit code {self.exit_code}){self.last_words()}")

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        await asyncio.wait([self._started().over])

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
            self._started().ask({"do": "signal", "number": int(number)})

    async def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Close its standard input and wait for its end; kill it after ``timeout`` seconds. May be called again."""
        if self._process is not None:
            await self._process.end(timeout)

    def last_words(self) -> str:
        """The last line of its log and the log's path, as the end of a sentence."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f": {lines[-1][:_SHOWN]} (see {self.log})" if lines else "; its log is empty"

    def _has_ended(self) -> ChildFailed:
        return ChildFailed(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}")

    def _started(self) -> _Process:
        if self._process is None:
            raise ChildFailed(f"the {self.name} was not started")
        return self._process


class _Process:
    """A child from its start to its end: the guard, and three sockets.

    Sockets rather than pipes: asyncio has public streams for them, and they can be closed even if a process that the
    child has left behind still holds the other end.
    """

    def __init__(self, child: Child) -> None:
        self._name, self._log = child.name, child.log
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code, when the child has ended."""
        self.pid = 0
        self._control, self._control_of_guard = socket.socketpair()
        self._control.setblocking(False)
        self._guard: subprocess.Popen[bytes] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._refusal = ""
        self._streams: list[asyncio.StreamWriter] = []

    async def begin(self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None) -> None:
        """Start the guard, and let it start the command."""
        _, self.input, theirs_in = await self._stream()
        with self._control_of_guard, theirs_in:
            self.output, _, theirs_out = await self._stream()
            with theirs_out:
                self._start_guard(theirs_in, theirs_out, environment, directory)
        self._hearing = asyncio.get_running_loop().create_task(self._hear())
        self.ask({"do": "run", "command": list(command), "log": str(self._log.absolute()), "through": True})
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._answered.wait()
        except TimeoutError:
            self._refusal = f"no answer within {_TIMEOUT:g} s"
        if self._refusal:
            raise ChildFailed(f"the {self._name} could not be started: {self._refusal}")

    async def _stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, socket.socket]:
        """A stream, and the socket at its other end."""
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._streams.append(writer)
        return reader, writer, theirs

    def _start_guard(
        self,
        their_input: socket.socket,
        their_output: socket.socket,
        environment: Mapping[str, str],
        directory: Path | None,
    ) -> None:
        with self._log.open("ab") as log:
            self._guard = start_guard(
                self._control_of_guard,
                stdin=their_input.fileno(),
                stdout=their_output.fileno(),
                stderr=log.fileno(),
                environment={**os.environ, **environment},
                works_in=directory,
            )

    def ask(self, request: dict[str, object]) -> None:
        """Send a request to the guard. It reads at once, and only reports the start and the end of the command."""
        with contextlib.suppress(ConnectionError):  # the guard ends
            # Wait for buffer space, for hundreds of requests at once.
            select.select([], [self._control], [], _MOMENT)
            self._control.send(json.dumps(request).encode() + b"\n")

    async def _hear(self) -> None:
        """Read all messages of the guard."""
        code, unread = None, b""
        with contextlib.suppress(OSError):
            while data := await asyncio.get_running_loop().sock_recv(self._control, 65_536):
                *lines, unread = (unread + data).split(b"\n")
                for message in map(json.loads, lines):
                    self.pid = message.get("pid", self.pid)
                    self._refusal = message.get("error", "")
                    code = message.get("exit_code", code)
                    self._answered.set()
        if not self._answered.is_set():
            self._refusal = f"its guard has ended; see {self._log}"
            self._answered.set()
        if code is None and self.pid:
            # The guard was killed. Linux then kills the child, but not its process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.over.set_result(-signal.SIGKILL if code is None else code)

    async def end(self, timeout: float) -> None:
        """Close the input and wait for the child, then have it killed. Closes everything, even if cancelled."""
        try:
            if self._hearing is not None:
                self.input.close()
                await asyncio.wait([self._hearing], timeout=timeout)
        finally:
            await to_the_end(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the guard kills the child and ends
        if self._guard is not None and self._hearing is not None:
            await asyncio.wait([self._hearing], timeout=_TIMEOUT)
            if not self._hearing.done():
                self._guard.kill()
                await asyncio.wait([self._hearing])
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait)
        self._control.close()
        self._control_of_guard.close()
        for stream in self._streams:
            stream.transport.abort()  # do not wait for unread input
