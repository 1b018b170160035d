"""The parent's side of a process that runs calls one at a time. A thread of the pool owns it and makes the blocking
calls.

``docs/decisions/0006-processes.md`` says why this is not a library's pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from aioparallel.handlers.blocking.calls import BlockingCall
from aioparallel.handlers.blocking.crossing import decoded, encoded, serve
from aioparallel.handlers.blocking.thread_pool import CallRunner
from aioparallel.records.errors import ProcessDied

__all__ = ["Child"]

# Seconds that a process may take to start: it imports the program, perhaps on a busy machine.
_START_TIMEOUT = 120.0
# Seconds that an idle process has to end by itself.
_END_TIMEOUT = 1.0
# Seconds between checks whether a process is alive. The end of its pipe shows that it has died, unless it has left a
# child behind that holds the pipe.
_LOOK = 1.0
_GUARD = (
    "its own output says why; the code that runs a program with in_processes must be below "
    '`if __name__ == "__main__":`, or each process would run it again'
)


class Child(CallRunner):
    """Runs calls in a process. :meth:`prepare` starts it, and replaces it when it has died or has run ``max_tasks``
    calls (0: any number)."""

    def __init__(self, function: bytes, name: str, max_tasks: int) -> None:
        self._function = function
        self._name = name
        self._max_tasks = max_tasks
        self._lock = threading.RLock()  # protects what abort() and close() change from other threads
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._calls = 0
        self._is_busy = False  # a call runs or the process starts, and the thread waits for the pipe
        self._is_doomed = False
        self._is_aborted = False  # the call that was taken last
        self._is_closed = False

    def prepare(self) -> None:
        """Start the process if necessary. Raises ProcessDied if it dies while it starts, or what importing the function
        raises there."""
        self._is_aborted = False
        self._make_ready()

    def _make_ready(self) -> None:
        with self._lock:
            if self._process is not None and not self._is_doomed and self._has_calls_left and self._process.is_alive():
                return
            self._end()
            self._start()
        message = self._receive(_START_TIMEOUT)
        if message is None:
            error: BaseException | None = self._death("before it could take a call", _GUARD)
        else:
            _, error = decoded(message)
        self._is_busy = False
        if error is not None:
            self._is_doomed = True
            error.add_note("while a process of in_processes started, and imported the handler")
            raise error

    @property
    def _has_calls_left(self) -> bool:
        return not self._max_tasks or self._calls < self._max_tasks

    def run(self, call: BlockingCall) -> None:
        """Send the call to the process and report its end."""
        try:
            message = encoded(call.item)  # in this thread, because a large item takes long
        except BaseException as error:
            self._is_busy = False
            call.report_end(None, error)
            return
        self._run(call, message)

    def _run(self, call: BlockingCall, sent: bytes) -> None:
        try:
            has_begun = self._send(sent)
            if not has_begun and not self._is_aborted:
                # The process died while it was idle, so this is not a failure of the call. If another one dies before
                # it begins, the call is the cause: its item may be too large.
                self._is_doomed = True
                self._make_ready()
                has_begun = self._send(sent)
            message = self._receive(None) if has_begun else None
            if message is None:
                self._is_doomed = True
                call.report_end(None, self._death("while it ran this call", ""))
            else:
                call.report_end(*decoded(message))
        except BaseException as error:
            self._is_doomed = True
            call.report_end(None, error)
        finally:
            self._is_busy = False

    def _send(self, message: bytes) -> bool:
        """Send a call. Returns whether the process has begun it."""
        with self._lock:
            if self._is_closed:  # while the item was pickled
                raise ProcessDied("was closed before it took the call", None)
            connection = self._connection
            assert connection is not None
            self._is_busy = True
            self._calls += 1
        with contextlib.suppress(OSError):  # detected below
            connection.send_bytes(message)
        return self._receive(None) is not None

    def abort(self) -> None:
        """Kill the process. The next call gets another one."""
        with self._lock:
            self._is_doomed = self._is_aborted = True
            if self._process is not None:
                self._process.kill()
            if self._connection is not None:
                # A child that the process has left behind may hold the other end, and would block a sender.
                _shut_down(self._connection)

    def close(self) -> None:
        """End the process, and wait for its end. An idle process ends by itself; a busy one is killed."""
        with self._lock:
            self._is_closed = True
            if self._is_busy:
                self.abort()
                assert self._process is not None
                self._process.join(_END_TIMEOUT)  # its thread cleans up
            else:
                self._end()

    # -- the process

    def _start(self) -> None:
        if self._is_closed:
            raise ProcessDied("was closed before it was started", None)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # Not a daemon: those cannot have children. It ends by itself when its parent does.
        process = context.Process(target=serve, args=(theirs, self._function), name=self._name)
        try:
            with _interrupts_blocked():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self._connection = process, ours
        self._calls, self._is_doomed, self._is_busy = 0, False, True

    def _end(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()  # the process ends when it sees this
        if process is not None:
            if self._is_doomed:
                process.kill()
            process.join(_END_TIMEOUT)
            if process.is_alive():
                process.kill()
                process.join(_END_TIMEOUT)

    def _receive(self, timeout: float | None) -> bytes | None:
        """The next message. None if the process has died, or after ``timeout`` seconds, when it is killed."""
        process, connection = self._process, self._connection
        assert process is not None
        assert connection is not None
        looks = 0
        while True:
            ready = wait((connection, process.sentinel), _LOOK)
            if connection in ready or connection.poll():
                try:
                    return connection.recv_bytes()
                except (EOFError, OSError):
                    return None
            looks += 1
            if ready or not process.is_alive():
                return None
            if timeout is not None and looks * _LOOK > timeout:
                process.kill()
                return None

    def _death(self, when: str, hint: str) -> ProcessDied:
        process = self._process
        assert process is not None
        process.join(_END_TIMEOUT)
        code = process.exitcode
        if code is None:
            how = "closed its pipe"
        elif code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was ended by {_signal_name(-code)}"
        return ProcessDied(f"(pid {process.pid}) {how} {when}" + (f"; {hint}" if hint else ""), code)


def _shut_down(connection: Connection) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes started here until they ignore it: Ctrl-C would end them during their imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
