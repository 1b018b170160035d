"""What the process has run out of is no failure of a record, whatever a handler makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pickle
import socket
from collections import Counter
from typing import Any

import pytest

from aioparallel import (
    Batch,
    FailurePolicy,
    OutOfResources,
    Record,
    Reject,
    RetryLater,
    RetryPolicy,
    batches,
    parallel_map,
)
from aioparallel.handlers import running_out
from aioparallel.handlers.running_out import out_of_resources, shortage_of
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until

ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq")


class Mine(Exception):
    """What a handler makes of it."""


def by_cause(error: BaseException) -> Exception:
    """Raised from it."""
    try:
        raise Mine from error
    except Mine as found:
        return found


def within(error: BaseException) -> Exception:
    """Raised while it was handled."""
    try:
        try:
            raise error
        except type(error):
            raise Mine  # noqa: B904 - as many do
    except Mine as found:
        return found


SHORT = [
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "in system"),
    OSError(errno.ENOBUFS, "no buffer"),
    OSError(errno.ENOMEM, "no memory"),
    OSError(errno.ENOSPC, "disk full"),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("error", SHORT, ids=repr)
def test_it_is_found_wherever_it_is(error: Exception) -> None:
    """By itself, as a cause, as a context, and in a group."""
    for one in (error, by_cause(error), within(error), ExceptionGroup("two", [ValueError(), by_cause(error)])):
        found = out_of_resources(one)
        assert found is not None
        assert found.what in str(found)


class Column:
    """As those of numpy and pandas: compared with anything it gives one of each row."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self

    def __repr__(self) -> str:
        return "Column()"

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a column is ambiguous")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        RuntimeError(Column()),
        OSError({"code": 7}, "an answer"),
        OSError(Column(), "an answer"),
        OSError("no number"),
        OSError(errno.ECONNREFUSED, "refused"),
        RuntimeError("can't start new thread for user 7"),
        socket.gaierror(errno.ENOMEM, "a number of its own"),
    ],
    ids=repr,
)
def test_what_is_none(error: Exception) -> None:
    """All else is the record's failure; so is a circle of causes."""
    assert shortage_of(error) is None
    other = by_cause(error)
    error.__cause__ = other
    assert shortage_of(error) is None


def test_names_that_are_not_found_for_want_of_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver says that it failed, and not that it could open nothing."""

    def none() -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert shortage_of(error) is None
    monkeypatch.setattr(socket, "socket", none)
    assert shortage_of(error) == "Too many open files"


def test_what_a_handler_has_decided_stays() -> None:
    """It rejects the record, or knows when to try again."""
    for decided in (Reject("no"), RetryLater(5)):
        decided.__cause__ = MemoryError()
        assert out_of_resources(decided) is None
    error = pickle.loads(pickle.dumps(OutOfResources("disk", 0.5)))
    assert (error.what, error.delay, str(error)) == ("disk", 0.5, "out of resources: disk")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again soon."""
    monkeypatch.setattr(running_out, "_LATER", 0.01)


@pytest.mark.parametrize("error", SHORT, ids=repr)
async def test_its_record_waits(error: Exception) -> None:
    """No attempt is counted, no dead letter is written, and a problem names it while it lasts."""
    broker = InMemoryBroker()
    for topic in ("t", "t.dlq"):
        broker.create_topic(topic, 1)
    produce(broker, [b"a", b"b", b"c"])
    attempts: list[int] = []
    is_short = True

    async def handle(record: Record[Any, Any]) -> None:
        attempts.append(record.attempt)
        if is_short:
            raise by_cause(error)

    async with asyncio.timeout(30), consumer_of(broker, failures=ONCE, until="end") as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(attempts) > 9)
        (problem,) = [one for one in consumer.health().problems if one.kind == "out_of_resources"]
        found = out_of_resources(error)
        assert found is not None
        assert found.what in problem.message
        is_short = False
        await running
        assert consumer.stats().succeeded == 3
        assert consumer.stats().failed_attempts == 0
    assert set(attempts) == {1}
    assert not broker.records("t.dlq")


async def test_batches_wait_as_one() -> None:
    """None of their records runs by itself for it."""
    broker = InMemoryBroker()
    for topic in ("t", "t.dlq"):
        broker.create_topic(topic, 1)
    produce(broker, [b"a", b"b", b"c"])
    sizes: list[int] = []

    async def handle(batch: Batch[Record[Any, Any]]) -> None:
        sizes.append(len(batch))
        if len(sizes) < 4:
            raise Mine from MemoryError()

    async with asyncio.timeout(30), consumer_of(broker, failures=ONCE, until="end") as consumer:
        await consumer.run(batches(handle, size=3, linger=0.1))
        assert consumer.stats().succeeded == 3
    assert set(sizes) == {3}


async def test_items_wait_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """In ``parallel_map``; a line tells of it, and not one for each."""
    seen: Counter[int] = Counter()

    async def handle(item: int) -> int:
        seen[item] += 1
        if seen[item] < 5:
            raise OSError(errno.EMFILE, "Too many open files")
        return item

    retry = RetryPolicy(max_attempts=1)
    found = [outcome async for outcome in parallel_map(handle, range(20), retry=retry, on_error="emit")]
    assert sorted(one.result() for one in found) == list(range(20))
    lines = [one for one in caplog.records if getattr(one, "action", "") == "out_of_resources"]
    assert len(lines) == 1
    assert "Too many open files" in lines[0].getMessage()


async def test_what_a_handler_has_come_over_is_none() -> None:
    """It could open nothing, went on without, and failed of something else: that is its record's failure."""

    async def handle(_: int) -> None:
        none = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(none.set_exception, OSError(errno.EMFILE, "Too many open files"))
        with contextlib.suppress(OSError):
            await none
        raise ValueError("of its own")

    retry = RetryPolicy(max_attempts=1)
    (found,) = [outcome async for outcome in parallel_map(handle, range(1), retry=retry, on_error="emit")]
    assert isinstance(found.error, ValueError)
    assert found.error.__context__ is None
