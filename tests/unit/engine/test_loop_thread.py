"""Flows in a thread of their own: fed and read from others, after a fork, and when the thread is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel.engine.flow import Outcome
from aioparallel.engine.loop_thread import LoopThread, ThreadedFlow
from aioparallel.errors import ConfigurationError, LoopThreadEnded
from aioparallel.handling import Handling
from aioparallel.resources import resource


async def same(item: int) -> int:
    return item


async def forever(item: int) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """Of its own, so that it may die."""
    thread = LoopThread()
    yield thread
    thread.close()


def read(flow: ThreadedFlow[Any, Any]) -> list[Outcome[Any, Any]]:
    outcomes: list[Outcome[Any, Any]] = []
    while taken := flow.take():
        outcomes += taken
    return outcomes


def test_lists_go_in_and_come_out(thread: LoopThread) -> None:
    """More than there is room for: the feeder waits for the reader."""
    flow = thread.flow(same, Handling(max_buffered=100, max_concurrency=10), in_order=True)

    def feed() -> None:
        flow.feed(range(1_000))
        flow.feed([])
        flow.feed(range(1_000, 1_500))
        flow.end()

    feeding = threading.Thread(target=feed)
    feeding.start()
    assert [outcome.value for outcome in read(flow)] == list(range(1_500))
    feeding.join()
    assert flow.take() == []
    assert flow.stats().succeeded == 1_500
    flow.close()


def test_a_reader_that_stops_holds_up_the_feeder(thread: LoopThread) -> None:
    """And closing lets it go."""
    flow = thread.flow(same, Handling(max_buffered=50, max_concurrency=10))
    failed: list[BaseException] = []

    def feed() -> None:
        try:
            flow.feed(range(1_000))
        except LoopThreadEnded as error:
            failed.append(error)

    feeding = threading.Thread(target=feed)
    feeding.start()
    assert flow.take()
    assert flow.stats().fed <= 60
    assert feeding.is_alive()
    flow.close()
    feeding.join(20)
    assert "this flow is closed" in str(failed[0])
    with pytest.raises(LoopThreadEnded, match="closed"):
        flow.take()


def test_keys_that_fail_do_not_overtake(thread: LoopThread) -> None:
    """Items that are left out at once make room amid the feeding: the others keep their order."""
    seen: list[int] = []

    async def note(item: int) -> None:
        seen.append(item)

    def key(number: int) -> Any:
        return "one key" if number % 3 else ["no key"]

    flow = thread.flow(
        note,
        Handling(max_buffered=3, max_concurrency=1, order_by=key),
        on_error="skip",
    )

    def feed() -> None:
        flow.feed(range(3_000))
        flow.end()

    feeding = threading.Thread(target=feed)
    feeding.start()
    read(flow)
    feeding.join()
    flow.close()
    assert seen == [n for n in range(3_000) if n % 3]


def test_what_fails_is_raised_at_the_reader(thread: LoopThread) -> None:
    """The item's own error; the thread goes on."""

    async def fail(item: int) -> None:
        raise ValueError(item)

    flow = thread.flow(fail, Handling())
    flow.feed([7])
    with pytest.raises(ValueError, match="7"):
        flow.take()
    flow.close()
    with pytest.raises(ConfigurationError, match="must be an `async def` function"):
        thread.flow(lambda item: item, Handling())
    other = thread.flow(same, Handling())
    other.feed([1])
    other.end()
    assert [outcome.value for outcome in read(other)] == [1]
    other.close()


def test_resources_are_opened_once_and_kept() -> None:
    """For all flows, until the thread ends; one that cannot be opened is tried anew by the next flow."""
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[str]:
        if not events:
            events.append("failed")
            raise ConnectionError("not yet")
        events.append("open")
        yield "client"
        events.append("closed")

    async def use(item: int) -> str:
        return resource("client", str)

    thread = LoopThread()
    handling = Handling(resources={"client": client})
    with pytest.raises(ConnectionError, match="not yet"):
        thread.flow(use, handling)
    for _ in range(3):
        flow = thread.flow(use, handling)
        flow.feed([1])
        flow.end()
        assert [outcome.value for outcome in read(flow)] == ["client"]
        flow.close()
    assert events == ["failed", "open"]
    thread.close()
    assert events == ["failed", "open", "closed"]
    with pytest.raises(LoopThreadEnded):
        thread.flow(same, Handling())


def test_a_thread_that_dies_raises_at_readers_and_feeders(thread: LoopThread) -> None:
    """Those that wait, and those that come later."""

    async def kill(item: int) -> None:
        asyncio.get_running_loop().call_later(0.05, sys.exit, 3)
        await asyncio.Event().wait()

    flow = thread.flow(kill, Handling(max_buffered=1, max_concurrency=1))
    failed: list[BaseException] = []

    def feed() -> None:
        try:
            flow.feed(range(10))
        except LoopThreadEnded as error:
            failed.append(error)

    feeding = threading.Thread(target=feed)
    feeding.start()
    with pytest.raises(LoopThreadEnded, match=r"SystemExit\(3\)"):
        flow.take()
    feeding.join(20)
    assert failed
    assert not thread.is_alive
    with pytest.raises(LoopThreadEnded):
        flow.feed([1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_one_of_its_own() -> None:
    """The parent's is not touched, and says so when it is used there."""
    first = LoopThread.of_this_process()
    assert LoopThread.of_this_process() is first
    old = first.flow(same, Handling())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.suppress(LoopThreadEnded):
                old.feed([1])
                os._exit(2)
            flow = LoopThread.of_this_process().flow(same, Handling())
            flow.feed(range(1_000))
            flow.end()
            code = 0 if len(read(flow)) == 1_000 else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    old.feed([1])
    old.end()
    assert len(read(old)) == 1
    old.close()


def test_hanging_handlers_are_cancelled_by_close(thread: LoopThread) -> None:
    """And close() waits for them."""
    flow = thread.flow(forever, Handling())
    flow.feed(range(100))
    flow.close()
    assert flow.stats().in_flight == 0
