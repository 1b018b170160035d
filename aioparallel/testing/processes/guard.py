"""The guard of a broker process: a small process of its own between us and a JVM.

Whatever ends the process that started a broker (its normal end, an exception, SIGKILL), the broker must end
too and its data directory must go. The dying process cannot be trusted with that, so a guard does it:

1. The guard is started with the read end of a pipe as its standard input, in a session of its own, where a
   Ctrl-C in the terminal or a signal to the caller's process group does not reach it.
2. The broker is the guard's child. The guard owns its process id: nobody else can reap it, so the id cannot
   come to mean another process. It leads a process group, which ends with it: Spark's commands are families.
3. The kernel closes the pipe when the caller ends, however it ends. The guard reads end-of-file, kills its
   child, removes the directory and exits. A forked child of the caller may hold the pipe open for longer, so
   the guard also looks once a second whether the caller is still its parent.
4. If the guard itself is killed, Linux kills its child (``PR_SET_PDEATHSIG``; set by the guard, whose only
   thread lives as long as it does, while a caller's thread may end earlier and would take the broker along).
   Elsewhere the broker would stay: kill the broker, not the guard.

Run as a script by :mod:`aioparallel.testing.processes.guarded`; it needs the standard library only, and speaks one JSON
object a line: ``{"do": "run", "command": [...], "log": path}`` answers ``{"pid": n}``; ``{"do": "signal",
"number": n}`` answers ``{}``; ``{"do": "poll"}`` answers ``{"exit_code": n or null}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CALLER_CHECK = 1.0
"""Seconds between two looks at whether the caller is still our parent."""

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal a process gets when its parent ends."""


class Guard:
    """Runs one command at a time for the caller, and cleans up behind it."""

    def __init__(self, directory: Path, caller: int) -> None:
        self._directory = directory
        self._caller = caller
        self._child: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Answer the caller until it is gone; then leave nothing behind."""
        try:
            for line in self._requests():
                try:
                    answer = self._answer(json.loads(line))
                except OSError as error:
                    answer = {"error": str(error)}
                os.write(1, json.dumps(answer).encode() + b"\n")
        finally:
            self._clean_up()

    def _requests(self) -> Iterator[bytes]:
        unread = b""
        while os.getppid() == self._caller:
            readable, _, _ = select.select([0], [], [], CALLER_CHECK)
            if not readable:
                continue
            data = os.read(0, 65536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            yield from lines

    def _answer(self, request: dict[str, object]) -> dict[str, object]:
        match request:
            case {"do": "run", "command": list(command), "log": str(log)}:
                return {"pid": self._run(command, log)}
            case {"do": "signal", "number": int(number)} if self._child is not None:
                self._child.send_signal(number)
                return {}
            case {"do": "poll"} if self._child is not None:
                return {"exit_code": self._child.poll()}
        return {"error": f"the guard cannot do {request!r} now"}

    def _run(self, command: list[str], log: str) -> int:
        with Path(log).open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        return self._child.pid

    def _clean_up(self) -> None:
        if self._child is not None:
            if self._child.poll() is None:  # not reaped, so its group cannot be somebody else's
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Guard the directory named by the first argument for the process named by the second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(BrokenPipeError):
        Guard(Path(sys.argv[1]), int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
