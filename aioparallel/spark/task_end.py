"""Detects in a Python worker that Spark has ended its task early: the JVM closes its end of their socket.

Spark does not notify a Python worker when a query is stopped, a job is cancelled, ``limit`` has its rows, or another
attempt was faster. The JVM's thread of a cancelled task checks its interruption only when it can read or write
(``BasePythonRunner.ReaderInputStream`` of Spark 4.2), else after some seconds (``spark.python.task.killTimeout``). So
the worker must also write something now and then.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import IO, Final, NamedTuple, Self

__all__ = ["Connection", "TaskEnd", "connection_to_jvm"]

# Events of poll() for a socket that the peer has closed; not those for readable data.
_CLOSED: Final = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)


class Connection(NamedTuple):
    """The streams between a Python worker and its JVM."""

    infile: IO[bytes]
    outfile: IO[bytes]


def connection_to_jvm() -> Connection | None:
    """The connection of this Python worker; None outside of one.

    PySpark does not publish it: these are local variables of ``main(infile, outfile)`` in the main thread of a worker.
    """
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        package = frame.f_globals.get("__package__") or frame.f_globals.get("__name__") or ""
        given = frame.f_locals
        if package.partition(".")[0] == "pyspark" and "infile" in given and "outfile" in given:
            return Connection(given["infile"], given["outfile"])
        frame = frame.f_back
    return None


class TaskEnd:
    """Calls ``on_end`` in a thread of its own when the JVM closes the connection within the block.

    It does nothing if the connection has no file descriptor; there the worker's writes soon fail.
    """

    def __init__(self, connection: Connection | None, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._thread: threading.Thread | None = None
        self.has_come = False
        """Whether the JVM has closed the connection."""
        descriptor = _descriptor_of(connection)
        if descriptor is None or not hasattr(select, "poll"):
            return
        self._leaving, self._leave = os.pipe()
        self._poll = select.poll()
        self._poll.register(descriptor, _CLOSED)
        self._poll.register(self._leaving, select.POLLIN)
        self._thread = threading.Thread(target=self._watch, name="aioparallel-task-end", daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            os.close(self._leave)
            self._thread.join()
            os.close(self._leaving)

    def _watch(self) -> None:
        if all(descriptor != self._leaving for descriptor, _ in self._poll.poll()):
            self.has_come = True
            self._on_end()


def _descriptor_of(connection: Connection | None) -> int | None:
    """None also in workers without a daemon (``spark.python.use.daemon=false``, Windows)."""
    if connection is None:
        return None
    try:
        return connection.infile.fileno()
    except OSError:
        return None
