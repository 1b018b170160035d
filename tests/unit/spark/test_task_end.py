"""A Python worker notices that the JVM has ended its task."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import IO, Any

import pytest

from aioparallel.spark.task_end import Connection, TaskEnd, connection_to_jvm

DEADLINE = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A worker's connection, and the JVM's end of it."""
    worker, jvm = socket.socketpair()
    with worker, jvm, worker.makefile("rb") as infile, worker.makefile("wb") as outfile:
        yield Connection(infile, outfile), jvm


def test_it_is_told_when_the_jvm_closes(ends: tuple[Connection, socket.socket]) -> None:
    """Though there is something left to read."""
    connection, jvm = ends
    told = threading.Event()
    with TaskEnd(connection, told.set) as end:
        jvm.sendall(b"rows")
        assert not told.is_set()
        jvm.close()
        assert told.wait(DEADLINE)
    assert end.has_come
    assert connection.infile.read(4) == b"rows"


def test_a_task_that_goes_on_is_told_nothing(ends: tuple[Connection, socket.socket]) -> None:
    """Data is no end; what closes after the block is none of this task."""
    connection, jvm = ends
    told = threading.Event()
    with TaskEnd(connection, told.set) as end:
        jvm.sendall(b"rows")
        assert connection.infile.read(4) == b"rows"
    jvm.close()
    assert not end.has_come
    assert not told.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "aioparallel-task-end"]


def test_outside_of_a_worker_there_is_no_connection() -> None:
    """Nobody is watched."""
    assert connection_to_jvm() is None
    with TaskEnd(None, pytest.fail) as end:
        pass
    assert not end.has_come


def test_a_connection_without_a_descriptor_is_not_watched() -> None:
    """As workers without a daemon have it."""
    worker, jvm = socket.socketpair()
    with worker, jvm, worker.makefile("rwb") as both, TaskEnd(Connection(both, both), pytest.fail) as end:  # type: ignore[arg-type]
        jvm.close()
    assert not end.has_come


@pytest.mark.parametrize("package", ["pyspark", "pyspark.sql.worker"])
def test_the_connection_is_found_from_any_thread(package: str, ends: tuple[Connection, socket.socket]) -> None:
    """As pyspark's workers have it: in ``main()``, which has called us."""
    connection, _ = ends
    worker = ModuleType("worker")
    worker.__package__ = package
    exec("def main(infile, outfile, serve):\n    serve()\n", worker.__dict__)
    found: list[Any] = []

    def serve() -> None:
        def look() -> None:
            found.append(connection_to_jvm())

        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    main: Any = worker.main

    def run(infile: IO[bytes], outfile: IO[bytes]) -> None:
        main(infile, outfile, serve)

    run(*connection)
    assert found == [connection, connection]
