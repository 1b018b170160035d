"""The guard: a small separate process between this process and the one that it starts.

However a process ends (normally, with an exception, by SIGKILL), the processes that it started must end too, and their
directory must be deleted. A dying process cannot ensure that, so a guard does:

1. The guard is started with one end of a socket, in its own session, where Ctrl-C in the terminal or a signal to the
   caller's process group does not reach it.
2. The command is the guard's child. Only the guard can reap it, so its process id cannot come to mean another process.
  It leads a process group, which ends with it: Spark's commands start more processes.
3. The kernel closes the socket when the caller ends in any way. The guard reads end-of-file, kills its child, deletes
  the directory and exits. A forked child of the caller may hold the socket open for longer, so the guard also checks
  once a second whether the caller is still its parent.
4. If the guard itself is killed, Linux kills its child (``PR_SET_PDEATHSIG``). The guard sets this because its only
   thread lives as long as the process; a thread of the caller may end earlier, which would kill the child. On other
   systems the child would survive, so kill the child and not the guard.

:mod:`aioparallel.testing.processes.guarded` runs it as a script for brokers (several commands in a directory), and
:mod:`aioparallel.testing.processes.child` for one command that gets the guard's standard input and output. It needs
only the standard library. Requests and answers are JSON objects, one per line: ``{"do": "run", "command": [...], "log":
path}`` answers ``{"pid": n}``; ``{"do": "signal", "number": n}`` answers ``{}``; ``{"do": "poll"}`` answers
``{"exit_code": n or null}``. After ``{"do": "run", ..., "through": true}`` signals have no answer, and the guard ends
with its command, after sending ``{"exit_code": n}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CALLER_CHECK = 1.0
"""Seconds between checks whether the caller is still the parent."""

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: sets the signal that a process gets when its parent ends."""


class Guard:
    """Runs one command at a time for the caller, and cleans up at the end. ``directory`` is deleted then."""

    def __init__(self, control: socket.socket, caller: int, directory: str) -> None:
        self._control = control
        self._caller = caller
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._through = False
        # The kernel writes to it when a child has ended.
        self._ends, wake_up = socket.socketpair()
        wake_up.setblocking(False)
        self._wake_up = wake_up
        signal.set_wakeup_fd(wake_up.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Answer the caller until it ends, or until a command with this process's input and output has ended. Then
        clean up."""
        try:
            for line in self._requests():
                try:
                    answer = self._answer(json.loads(line))
                except OSError as error:
                    answer = {"error": str(error)}
                if answer or not self._through:  # with "through", signals have no answer
                    self._send(answer)
        finally:
            code = self._clean_up()
            if self._through:
                self._send({"exit_code": code})

    def _send(self, answer: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the caller has ended
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _requests(self) -> Iterator[bytes]:
        unread = b""
        while os.getppid() == self._caller and not (self._through and self._has_ended()):
            readable, _, _ = select.select([self._control, self._ends], [], [], CALLER_CHECK)
            if self._ends in readable:
                self._ends.recv(4096)
            if self._control not in readable:
                continue
            data = self._control.recv(65536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            yield from lines

    def _answer(self, request: dict[str, object]) -> dict[str, object]:
        match request:
            case {"do": "run", "command": list(command), "log": str(log), **more}:
                return {"pid": self._run(command, log, bool(more.get("through")))}
            case {"do": "signal", "number": int(number)} if self._child is not None:
                if not self._has_ended():
                    os.kill(self._child.pid, number)
                return {}
            case {"do": "poll"} if self._child is not None:
                return {"exit_code": self._child.poll()}
        return {"error": f"the guard cannot do {request!r} now"}

    def _run(self, command: list[str], log: str, through: bool) -> int:
        with Path(log).open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=None if through else subprocess.DEVNULL,
                stdout=None if through else output,
                stderr=output,
                cwd=self._directory or None,
                process_group=0,
                preexec_fn=_reset_signals,  # noqa: PLW1509 - this process has one thread
            )
        if through:
            self._through = True
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)  # only the command has them now, so they close when it ends
            os.dup2(nothing, 1)
        return self._child.pid

    def _has_ended(self) -> bool:
        """Check without reaping: while the child is a zombie, its process group id cannot be reused."""
        assert self._child is not None
        if self._child.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _clean_up(self) -> int | None:
        code = None
        if self._child is not None:
            if self._child.returncode is None:  # not reaped
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            code = self._child.wait()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        return code


def _reset_signals() -> None:
    # The command would inherit the signals that the guard ignores.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Arguments: file descriptor of the socket, process id of the caller, directory to delete (may be empty)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Guard(control, int(sys.argv[2]), sys.argv[3]).serve()


if __name__ == "__main__":
    main()
