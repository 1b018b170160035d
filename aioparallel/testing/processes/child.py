"""A process that we start, hear, pause and kill, and that cannot outlive us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from aioparallel.errors import AioparallelError
from aioparallel.testing.processes.guarded import check_platform, guard_command

__all__ = ["Child", "ChildFailed"]

_LINE_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 5.0
_START_TIMEOUT: Final = 20.0
"""Seconds for the guard to have started the command."""
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
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._pid: int | None = None
        self._exit_code: int | None = None

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
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        try:
            with theirs, self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *guard_command(theirs),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self._environment},
                    cwd=self._directory,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    limit=_LINE_LIMIT,
                )
            self._pid = await self._run()
        except BaseException:
            self._control.close()
            await self.stop(0.0)
            raise

    async def _run(self) -> int:
        """Have the guard start the command; its process id."""
        assert self._control is not None
        loop = asyncio.get_running_loop()
        request = {"do": "run", "command": self._command, "log": str(self.log.absolute()), "through": True}
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                await loop.sock_sendall(self._control, json.dumps(request).encode() + b"\n")
                answer = b""
                while b"\n" not in answer:
                    if not (data := await loop.sock_recv(self._control, 65_536)):
                        raise ChildFailed(f"the guard of the {self.name} has ended; see {self.log}")
                    answer += data
        except TimeoutError:
            raise ChildFailed(f"the {self.name} was not started within {_START_TIMEOUT:g} s") from None
        line, self._rest = answer.split(b"\n", 1)
        told = json.loads(line)
        if "error" in told:
            raise ChildFailed(f"the {self.name} could not be started: {told['error']}")
        return int(told["pid"])

    @property
    def pid(self) -> int:
        """Its process id, which is its process group too."""
        if self._pid is None:
            raise ChildFailed(f"the {self.name} was not started")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it was started and its end has not been seen yet."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        if self._process is None or self._process.returncode is None:
            return None
        if self._exit_code is None:
            self._exit_code = self._told_exit_code()
        return self._exit_code

    def _told_exit_code(self) -> int:
        """What the guard has said at its end; where it was killed, and the child with it, that of SIGKILL."""
        assert self._control is not None
        said = self._rest
        with contextlib.suppress(OSError):
            while data := self._control.recv(65_536):
                said += data
        codes = [told["exit_code"] for line in said.splitlines() if "exit_code" in (told := json.loads(line))]
        return int(codes[-1]) if codes else -signal.SIGKILL

    async def line(self, timeout: float = _LINE_TIMEOUT) -> str:
        """The next line that it writes to standard output, without its end.

        Raises ChildFailed when it has ended, or writes none within ``timeout`` seconds.
        """
        output = self._pipes().stdout
        assert output is not None  # a pipe was asked for
        try:
            async with asyncio.timeout(timeout):
                line = await output.readline()
                if not line:
                    await self._pipes().wait()
        except TimeoutError:
            raise ChildFailed(f"the {self.name} said nothing for {timeout:g} s{self.last_words()}") from None
        except ValueError as error:  # a line without an end
            raise ChildFailed(f"the {self.name} wrote a line that is too long ({error})") from error
        if not line:
            raise ChildFailed(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}")
        return line.decode(errors="replace").rstrip("\r\n")

    async def lines(self) -> AsyncIterator[str]:
        """The lines that it writes to standard output, until it closes that."""
        output = self._pipes().stdout
        assert output is not None
        async for line in output:
            yield line.decode(errors="replace").rstrip("\r\n")

    async def say(self, line: str) -> None:
        """A line to its standard input. Raises ChildFailed when it has ended."""
        writer = self._pipes().stdin
        assert writer is not None
        try:
            writer.write(line.encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            await self._pipes().wait()
            raise ChildFailed(f"the {self.name} ended with exit code {self.exit_code}{self.last_words()}") from None

    async def ended(self, timeout: float | None = None) -> None:
        """Wait until it ends by itself. Raises ChildFailed for an exit code other than 0, and after ``timeout``
        seconds."""
        try:
            await asyncio.wait_for(self._pipes().wait(), timeout)
        except TimeoutError:
            raise ChildFailed(f"the {self.name} did not end within {timeout or 0:g} s{self.last_words()}") from None
        if self.exit_code:
            raise ChildFailed(f"the {self.name} failed (exit code {self.exit_code}){self.last_words()}")

    async def kill(self) -> None:
        """SIGKILL, and wait: it gets no chance to finish anything."""
        self.signal(signal.SIGKILL)
        await self._pipes().wait()

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
            assert self._control is not None
            with contextlib.suppress(OSError):  # it ends
                self._control.send(json.dumps({"do": "signal", "number": int(number)}).encode() + b"\n")

    async def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Close its standard input and wait for its end; after ``timeout`` seconds kill it. May be called again."""
        process, control = self._process, self._control
        if process is None or control is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), timeout)
        finally:
            if control.fileno() >= 0:
                self._exit_code = self.exit_code  # as long as it can be read
            control.close()  # the guard kills what is left
        await process.wait()
        if self._exit_code is None:
            self._exit_code = -signal.SIGKILL

    def last_words(self) -> str:
        """The last line of its log, as the end of a sentence, and where the rest is."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f": {lines[-1][:_SHOWN]} (see {self.log})" if lines else "; it said nothing"

    def _pipes(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ChildFailed(f"the {self.name} was not started")
        return self._process
