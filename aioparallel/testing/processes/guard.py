"""The guard of a process: a small process of its own between us and what we start.

Whatever ends the process that started another (its normal end, an exception, SIGKILL), what it started must end too
and its directory must go. The dying process cannot be trusted with that, so a guard does it:

1. The guard is started with one end of a socket, in a session of its own, where a Ctrl-C in the terminal or a signal to
   the caller's process group does not reach it.
2. The command is the guard's child. The guard owns its process id: nobody else can reap it, so the id cannot
   come to mean another process. It leads a process group, which ends with it: Spark's commands are families.
3. The kernel closes the socket when the caller ends, however it ends. The guard reads end-of-file, kills its
   child, removes the directory and exits. A forked child of the caller may hold the socket open for longer, so
   the guard also looks once a second whether the caller is still its parent.
4. If the guard itself is killed, Linux kills its child (``PR_SET_PDEATHSIG``; set by the guard, whose only
   thread lives as long as it does, while a caller's thread may end earlier and would take the child along).
   Elsewhere the child would stay: kill the child, not the guard.

Run as a script by :mod:`aioparallel.testing.processes.guarded` (brokers: commands one after the other, in a directory)
and :mod:`aioparallel.testing.processes.child` (one command, which has the guard's standard input and output). It needs
the standard library only, and speaks one JSON object a line: ``{"do": "run", "command": [...], "log": path}`` answers
``{"pid": n}``; ``{"do": "signal", "number": n}`` answers ``{}``; ``{"do": "poll"}`` answers ``{"exit_code": n or
null}``. After ``{"do": "run", ..., "through": true}`` signals have no answer, and the guard ends with its command,
saying ``{"exit_code": n}``.
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
"""Seconds between two looks at whether the caller is still our parent."""

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal a process gets when its parent ends."""


class Guard:
    """Runs one command at a time for the caller, and cleans up behind it. ``directory``: removed at the end."""

    def __init__(self, control: socket.socket, caller: int, directory: str) -> None:
        self._control = control
        self._caller = caller
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._through = False
        # Written to by the kernel when a child has ended.
        self._ends, wake_up = socket.socketpair()
        wake_up.setblocking(False)
        self._wake_up = wake_up
        signal.set_wakeup_fd(wake_up.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Answer the caller until it is gone, or the command has ended that has our input and output; then leave
        nothing behind."""
        try:
            for line in self._requests():
                try:
                    answer = self._answer(json.loads(line))
                except OSError as error:
                    answer = {"error": str(error)}
                if answer or not self._through:  # there nobody waits for word that a signal was sent
                    self._tell(answer)
        finally:
            code = self._clean_up()
            if self._through:
                self._tell({"exit_code": code})

    def _tell(self, answer: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the caller is gone
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
                preexec_fn=_begin_as_a_child,  # noqa: PLW1509 - this process has one thread
            )
        if through:
            self._through = True
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)  # the command has them now, alone: their ends are its ends
            os.dup2(nothing, 1)
        return self._child.pid

    def _has_ended(self) -> bool:
        """Without reaping it: while it is a zombie, its process group cannot be somebody else's."""
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


def _begin_as_a_child() -> None:
    # What the guard ignores, its command would ignore too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """The arguments: descriptor of the socket, process id of the caller, directory to remove (may be empty)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Guard(control, int(sys.argv[2]), sys.argv[3]).serve()


if __name__ == "__main__":
    main()
