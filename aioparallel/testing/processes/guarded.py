"""Runs commands that end with this process, in a temporary directory: for brokers, with synchronous methods."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aioparallel.records.errors import BrokerStartError

__all__ = ["GuardedProcess", "check_platform", "start_guard"]

_ANSWER_TIMEOUT: Final = 20.0
"""Seconds for the guard's answer; it only starts or signals a process."""
_POLL_INTERVAL: Final = 0.02


def check_platform() -> None:
    """Raise BrokerStartError on platforms where processes cannot be guarded."""
    if os.name != "posix":
        raise BrokerStartError(
            f"a broker in a separate process needs Linux or macOS, not {sys.platform}; use Docker there"
        )


class GuardedProcess:
    """Runs commands, one at a time, under a guard, in a new temporary directory.

    All methods block briefly and may be called from any thread. ``close`` ends the command and deletes the directory.
    So does the end of this process, whatever its cause.
    """

    def __init__(self, purpose: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"aioparallel-{purpose}-"))
        self.pid: int | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_TIMEOUT)
        with theirs:
            self._guard = start_guard(theirs, self.directory)

    def run(self, command: Sequence[str], log: Path) -> None:
        """Start a command in the directory. Its output is appended to ``log``."""
        answer = self._ask({"do": "run", "command": list(command), "log": str(log)})
        pid = answer["pid"]
        assert isinstance(pid, int)
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal. Does nothing if it has ended."""
        self._ask({"do": "signal", "number": int(number)})

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the command runs."""
        code = self._ask({"do": "poll"})["exit_code"]
        assert code is None or isinstance(code, int)
        return code

    def wait(self, timeout: float) -> int | None:
        """Wait up to ``timeout`` seconds for the command's end; None if it still runs."""
        deadline = time.monotonic() + timeout
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        return code

    def close(self) -> None:
        """Kill the command, delete the directory and end the guard. May be called again."""
        if os.getpid() != self._owner:
            return  # a forked child runs this process's exit handlers, but does not own the broker
        with self._lock:
            self._control.close()
            try:
                self._guard.wait(_ANSWER_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # in case the guard was killed

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        with self._lock:
            if self._control.fileno() < 0:
                raise BrokerStartError("this broker process was closed; make a new one")
            try:
                self._control.sendall(json.dumps(request).encode() + b"\n")
                answer: dict[str, object] = json.loads(self._read_line())
            except TimeoutError as error:
                raise BrokerStartError(
                    f"the guard of the broker process (pid {self._guard.pid}) did not answer within "
                    f"{_ANSWER_TIMEOUT:g} s; is the machine overloaded?"
                ) from error
            except (OSError, json.JSONDecodeError) as error:
                raise BrokerStartError(
                    f"the guard of the broker process (pid {self._guard.pid}) is gone ({error!r}); start a new broker"
                ) from error
        if "error" in answer:
            raise BrokerStartError(f"the broker process: {answer['error']}")
        return answer

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n") and (data := self._control.recv(65536)):
            line += data
        return line


def start_guard(
    control: socket.socket,
    removes: Path | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
    works_in: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a guard that gets requests through ``control``, and deletes ``removes`` at its end."""
    # -I and -S: the user's environment cannot break the guard, and it starts in a third of the time.
    script = Path(__file__).with_name("guard.py")
    arguments = str(control.fileno()), str(os.getpid()), str(removes or "")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        cwd=works_in,
        pass_fds=[control.fileno()],
        start_new_session=True,
    )
