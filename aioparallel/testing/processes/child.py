"""A process that we start, hear, pause and kill, and that cannot outlive us."""

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

from aioparallel.engine.waiting import to_the_end
from aioparallel.errors import AioparallelError
from aioparallel.testing.processes.guarded import check_platform, start_guard

__all__ = ["Child", "ChildFailed"]

_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 5.0
_MOMENT: Final = 1.0
"""Seconds from the end of a child's input to the word that it has ended."""
_LINE_LIMIT: Final = 1 << 24
"""Bytes of a line that is read."""
_SHOWN: Final = 500
"""Characters of its last words in a message."""
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class ChildFailed(AioparallelError):
    """A child process did not do what was asked; the message ends with its last words."""


class Child:
    """One process, with a guard (see ``guard.py``). An async context manager: leaving it stops the process.

    ``name``: for messages. ``command``: program and arguments. ``log``: a file that gets what it writes to standard
    error. ``environment``: variables beside ours. ``directory``: where it works, by default where we do.

    Its standard input and output are pipes, see :meth:`say` and :meth:`line`. It leads a process group, so that Ctrl-C
    in the terminal does not reach it, and what it starts ends with it. When this process ends, however, it is killed.
    Linux and macOS; entering raises ChildFailed where the command cannot be started.
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
        self._life: _Life | None = None

    @classmethod
    def of_module(
        cls, name: str, module: str, *arguments: str, log: Path, environment: Mapping[str, str] = _NONE
    ) -> Self:
        """One that runs a module of Python as a program."""
        return cls(name, [sys.executable, "-m", module, *arguments], log=log, environment=environment)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it; once."""
        check_platform()
        if self._life is not None:
            raise ChildFailed(f"the {self.name} was started before")
        self._life = life = _Life(self)
        try:
            await life.begin(self._command, self._environment, self._directory)
        except BaseException:
            await life.end(0.0)
            raise

    @property
    def pid(self) -> int:
        """Its process id, which is its process group too."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether it was started and its end has not been seen yet."""
        return self._life is not None and not self._life.over.done()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        over = None if self._life is None else self._life.over
        return over.result() if over is not None and over.done() else None

    async def line(self, timeout: float = _TIMEOUT) -> str:
        """The next line that it writes to standard output, without its end.

        Raises ChildFailed when it has ended or closed its output, or writes none within ``timeout`` seconds. One that
        writes a line without an end is killed.
        """
        life = self._started()
        try:
            async with asyncio.timeout(timeout):
                line = await self._read_line()
                if line is None:
                    await asyncio.wait([life.over])
        except TimeoutError:
            raise ChildFailed(f"the {self.name} said nothing for {timeout:g} s{self.last_words()}") from None
        if line is None:
            raise self._has_ended()
        return line

    async def lines(self) -> AsyncIterator[str]:
        """The lines that it writes to standard output, until it closes that. Read them: one that nobody hears blocks
        when its output is full."""
        while (line := await self._read_line()) is not None:
            yield line

    async def _read_line(self) -> str | None:
        """The next line; None at the end of its output."""
        try:
            line = await self._started().output.readline()
        except ValueError as error:
            await self.kill()
            raise ChildFailed(f"the {self.name} wrote a line that is too long, and was killed ({error})") from error
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    async def say(self, line: str, timeout: float = _TIMEOUT) -> None:
        """A line to its standard input. Raises ChildFailed when it has ended, or takes nothing for so many seconds."""
        life = self._started()
        try:
            async with asyncio.timeout(timeout):
                life.input.write(line.encode() + b"\n")
                await life.input.drain()
        except TimeoutError:
            raise ChildFailed(f"the {self.name} took nothing for {timeout:g} s{self.last_words()}") from None
        except (OSError, RuntimeError):  # RuntimeError: uvloop's, of what is closed
            await asyncio.wait([life.over], timeout=_MOMENT)
            if self.running:
                raise ChildFailed(f"the {self.name} has closed its standard input{self.last_words()}") from None
            raise self._has_ended() from None

    async def ended(self, timeout: float | None = None) -> None:
        """Wait until it ends by itself. Raises ChildFailed for an exit code other than 0, and after ``timeout``
        seconds."""
        await asyncio.wait([self._started().over], timeout=timeout)
        if self.running:
            raise ChildFailed(f"the {self.name} did not end within {timeout or 0:g} s{self.last_words()}")
        if self.exit_code:
            raise ChildFailed(f"the {self.name} failed (exit code {self.exit_code}){self.last_words()}")

    async def kill(self) -> None:
        """SIGKILL, and wait: it gets no chance to finish anything."""
        self.signal(signal.SIGKILL)
        await asyncio.wait([self._started().over])

    def terminate(self) -> None:
        """SIGTERM."""
        self.signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: let it hang."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self.running:
            self._started().ask({"do": "signal", "number": int(number)})

    async def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Close its standard input and wait for its end; after ``timeout`` seconds kill it. May be called again."""
        if self._life is not None:
            await self._life.end(timeout)

    def last_words(self) -> str:
        """The last line of its log, as the end of a sentence, and where the rest is."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f": {lines[-1][:_SHOWN]} (see {self.log})" if lines else "; it said nothing"

    def _has_ended(self) -> ChildFailed:
        return ChildFailed(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}")

    def _started(self) -> _Life:
        if self._life is None:
            raise ChildFailed(f"the {self.name} was not started")
        return self._life


class _Life:
    """What there is of a child from its start to its end: the guard, and three sockets.

    Sockets rather than pipes: asyncio has public streams for them, and they can be closed though somebody else, whom
    the child has left behind, still holds the other end.
    """

    def __init__(self, child: Child) -> None:
        self._name, self._log = child.name, child.log
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code, when it has ended."""
        self.pid = 0
        self._control, self._control_of_guard = socket.socketpair()
        self._control.setblocking(False)
        self._guard: subprocess.Popen[bytes] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._refusal = ""
        self._streams: list[asyncio.StreamWriter] = []

    async def begin(self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None) -> None:
        """Start the guard, and have it start the command."""
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
        """Our end, and the other one."""
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
        """Tell the guard; it reads at once, and answers only what it started and how that ended."""
        with contextlib.suppress(ConnectionError):  # it ends
            # Hundreds of them in one moment have to wait for it.
            select.select([], [self._control], [], _MOMENT)
            self._control.send(json.dumps(request).encode() + b"\n")

    async def _hear(self) -> None:
        """All that the guard says, to its end."""
        code, unread = None, b""
        with contextlib.suppress(OSError):
            while data := await asyncio.get_running_loop().sock_recv(self._control, 65_536):
                *lines, unread = (unread + data).split(b"\n")
                for told in map(json.loads, lines):
                    self.pid = told.get("pid", self.pid)
                    self._refusal = told.get("error", "")
                    code = told.get("exit_code", code)
                    self._answered.set()
        if not self._answered.is_set():
            self._refusal = f"its guard has ended; see {self._log}"
            self._answered.set()
        if code is None and self.pid:
            # Somebody has killed the guard. Of the child Linux takes care, of its family nobody.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.over.set_result(-signal.SIGKILL if code is None else code)

    async def end(self, timeout: float) -> None:
        """Close its input and wait for it, then have it killed. Whatever cancels meanwhile, nothing is left open."""
        try:
            if self._hearing is not None:
                self.input.close()
                await asyncio.wait([self._hearing], timeout=timeout)
        finally:
            await to_the_end(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the guard kills what is left, and ends
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
            stream.transport.abort()  # what the child did not read is not waited for
