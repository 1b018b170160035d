"""A process that cannot outlive us, and its directory. Our side of :mod:`aioparallel.testing.processes.guard`."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aioparallel.errors import BrokerStartError

__all__ = ["GuardedProcess", "check_platform"]

_GUARD_SCRIPT: Final = Path(__file__).with_name("guard.py")
_ANSWER_TIMEOUT: Final = 20.0
"""Seconds within which the guard answers one line; it only ever starts or signals a process."""
_POLL_INTERVAL: Final = 0.02


def check_platform() -> None:
    """Raises BrokerStartError where processes cannot be guarded."""
    if os.name != "posix":
        raise BrokerStartError(
            f"a broker as a process of its own needs Linux or macOS, not {sys.platform}; use Docker there"
        )


class GuardedProcess:
    """Runs commands, one at a time, under a guard, inside a fresh temporary directory.

    All methods block briefly and may be called from any thread. ``close`` ends the command and removes the directory;
    so does the end of this process, whatever its cause.
    """

    def __init__(self, purpose: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"aioparallel-{purpose}-"))
        self.pid: int | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # -I and -S: nothing of the user's environment may break the guard, and it starts in a third of the time.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD_SCRIPT), str(self.directory), str(self._owner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def run(self, command: Sequence[str], log: Path) -> None:
        """Start a command with the directory as its working directory; its output is appended to ``log``."""
        answer = self._ask({"do": "run", "command": list(command), "log": str(log)})
        pid = answer["pid"]
        assert isinstance(pid, int)
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal; nothing happens if it has ended."""
        self._ask({"do": "signal", "number": int(number)})

    def exit_code(self) -> int | None:
        """None while the command runs; a negative number is the signal that ended it."""
        code = self._ask({"do": "poll"})["exit_code"]
        assert code is None or isinstance(code, int)
        return code

    def wait(self, timeout: float) -> int | None:
        """Wait up to ``timeout`` seconds for the command's end; None if it still runs then."""
        deadline = time.monotonic() + timeout
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        return code

    def close(self) -> None:
        """Kill the command, remove the directory, end the guard. May be called again."""
        if os.getpid() != self._owner:
            return  # a forked child runs our exit handlers: the broker is not its own
        with self._lock:
            assert self._guard.stdin is not None
            assert self._guard.stdout is not None
            self._guard.stdin.close()
            try:
                self._guard.wait(_ANSWER_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
            self._guard.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)  # the guard's work, unless somebody killed the guard

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        with self._lock:
            if self._guard.stdin is None or self._guard.stdin.closed:
                raise BrokerStartError("this broker process was closed; make a new one")
            try:
                self._guard.stdin.write(json.dumps(request).encode() + b"\n")
                answer: dict[str, object] = json.loads(self._read_line())
            except (BrokenPipeError, json.JSONDecodeError) as error:
                raise BrokerStartError(
                    f"the guard of the broker process (pid {self._guard.pid}) is gone ({error!r}); start a new broker"
                ) from error
        if "error" in answer:
            raise BrokerStartError(f"the broker process: {answer['error']}")
        return answer

    def _read_line(self) -> bytes:
        assert self._guard.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._guard.stdout], [], [], _ANSWER_TIMEOUT)
            if not readable:
                raise BrokerStartError(
                    f"the guard of the broker process (pid {self._guard.pid}) did not answer within "
                    f"{_ANSWER_TIMEOUT:g} s; is the machine overloaded?"
                )
            data = self._guard.stdout.read(65536)
            if not data:
                break
            line += data
        return line
