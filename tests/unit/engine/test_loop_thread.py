"""Flows in a thread of their own: fed and read from others, after a fork, and when the thread is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from aioparallel.engine.flow import Outcome
from aioparallel.engine.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.work import Work
from aioparallel.errors import ConfigurationError, ConsumerStateError, LoopThreadEnded
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
    flow = thread.flow(Work(same, Handling(max_buffered=100, max_concurrency=10), in_order=True))

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
    flow = thread.flow(Work(same, Handling(max_buffered=50, max_concurrency=10)))
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
        Work(
            note,
            Handling(max_buffered=3, max_concurrency=1, order_by=key),
            on_error="skip",
        )
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

    flow = thread.flow(Work(fail, Handling()))
    flow.feed([7])
    with pytest.raises(ValueError, match="7"):
        flow.take()
    flow.close()
    with pytest.raises(ConfigurationError, match="must be an `async def` function"):
        thread.flow(Work(lambda item: item, Handling()))
    other = thread.flow(Work(same, Handling()))
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
        thread.flow(Work(use, handling))
    for _ in range(3):
        flow = thread.flow(Work(use, handling))
        flow.feed([1])
        flow.end()
        assert [outcome.value for outcome in read(flow)] == ["client"]
        flow.close()
    assert events == ["failed", "open"]
    thread.close()
    assert events == ["failed", "open", "closed"]
    with pytest.raises(LoopThreadEnded):
        thread.flow(Work(same, Handling()))


def test_a_thread_that_dies_raises_at_readers_and_feeders(thread: LoopThread) -> None:
    """Those that wait, and those that come later."""

    async def kill(item: int) -> None:
        asyncio.get_running_loop().call_later(0.05, sys.exit, 3)
        await asyncio.Event().wait()

    flow = thread.flow(Work(kill, Handling(max_buffered=1, max_concurrency=1)))
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
    old = first.flow(Work(same, Handling()))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.suppress(LoopThreadEnded):
                old.feed([1])
                os._exit(2)
            flow = LoopThread.of_this_process().flow(Work(same, Handling()))
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
    flow = thread.flow(Work(forever, Handling()))
    flow.feed(range(100))
    flow.close()
    assert flow.stats().in_flight == 0


def in_background(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """What it has returned, or raised."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(function())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_what_cannot_be_fed_is_told_to_the_feeder(thread: LoopThread) -> None:
    """Any iterable can; after end() nothing can, however much of it, and who waits for room then hears of it, too."""
    flow = thread.flow(Work(same, Handling(max_buffered=8, max_concurrency=2), in_order=True))
    flow.feed(number for number in range(3))
    flow.feed({3: "a"})
    with pytest.raises(TypeError):
        flow.feed(5)  # type: ignore[arg-type]
    flow.feed(deque([4]))
    waiting, ended = in_background(lambda: flow.feed(range(5, 100)))
    while flow.stats().fed < 10:
        pass
    flow.end()
    waiting.join(20)
    assert isinstance(ended[0], ValueError)
    for items in ([1], range(100)):
        with pytest.raises(ValueError, match=r"end\(\) was called"):
            flow.feed(items)
    reading, given = in_background(lambda: [outcome.value for outcome in read(flow)])
    reading.join(20)
    assert given == [list(range(10))]
    with pytest.raises(ValueError, match=r"end\(\) was called"):
        flow.feed([1])


def test_a_key_that_breaks_the_lanes_is_raised_at_both(thread: LoopThread) -> None:
    """Feeder and reader."""

    class Awkward:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise ArithmeticError("not comparable")

    flow = thread.flow(Work(same, Handling(order_by=lambda n: Awkward()), on_error="emit"))
    with pytest.raises(ArithmeticError):
        flow.feed(range(5))
    with pytest.raises(ArithmeticError):
        read(flow)
    with pytest.raises(ArithmeticError):
        flow.take()


def test_it_cannot_be_waited_for_within_itself(thread: LoopThread) -> None:
    """That would be for ever."""

    async def nested(item: int) -> None:
        thread.flow(Work(same, Handling()))

    flow = thread.flow(Work(nested, Handling()))
    flow.feed([1])
    with pytest.raises(ConsumerStateError, match="within its own event loop"):
        flow.take()


def test_readers_hear_at_once_that_it_is_over(thread: LoopThread) -> None:
    """Not one after the other, behind handlers that ignore their cancellation."""

    goes_on = threading.Event()

    async def stubborn(item: int) -> None:
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    flows = [thread.flow(Work(stubborn, Handling(drain_timeout=60))) for _ in range(4)]
    for flow in flows:
        flow.feed([1])
    readers = [in_background(flow.take) for flow in flows]
    closing, _ = in_background(thread.close)
    for reader, _ in readers:
        reader.join(20)
    assert closing.is_alive()  # the handlers still run
    assert all(isinstance(ended[0], LoopThreadEnded) for _, ended in readers)
    goes_on.set()
    closing.join(20)


def test_a_flow_that_was_read_to_its_end_leaves_nothing(thread: LoopThread) -> None:
    """Nobody has to close it; its statistics stay."""
    flow = thread.flow(Work(same, Handling()))
    flow.feed(range(10))
    flow.end()
    assert len(read(flow)) == 10
    assert flow.take() == []

    async def tasks() -> int:
        return len(asyncio.all_tasks()) - 1

    deadline = time.monotonic() + 20
    while thread.run(tasks()) and time.monotonic() < deadline:
        pass
    assert thread.run(tasks()) == 0
    assert not thread._flows
    assert flow.stats().succeeded == 10
    flow.close()
    with pytest.raises(ConfigurationError, match="must be a Handling"):
        thread.flow(Work(same, {}))  # type: ignore[arg-type]


EXIT = """
import asyncio, contextlib, os, threading
from aioparallel import Handling, LoopThread, Work

def say(what):  # in one piece: threads speak at once
    os.write(1, f"{what}\\n".encode())

@contextlib.asynccontextmanager
async def client():
    yield "client"
    await asyncio.to_thread(say, "closed")

async def same(item):
    return item

handling = Handling(max_buffered=2, max_concurrency=1, resources={"c": client})
flow = LoopThread.of_this_process().flow(Work(same, handling))

def feed():
    try:
        flow.feed(range(100))
    except Exception as error:
        say(type(error).__name__)

threading.Thread(target=feed).start()
say(len(flow.take()) > 0)
"""


def test_the_interpreter_ends(thread: LoopThread) -> None:
    """Though a feeder waits for room; and what is closed then may use threads."""
    ran = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == ["LoopThreadEnded", "True", "closed"], ran.stderr


INTERRUPTED = """
import asyncio, contextlib, os, signal
from aioparallel import Handling, LoopThread, Work

def say(what):  # in one piece: threads speak at once
    os.write(1, f"{what}\\n".encode())

@contextlib.asynccontextmanager
async def slow():
    try:
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)
        yield
    finally:
        say("cancelled")

async def same(item):
    return item

thread = LoopThread.of_this_process()
try:
    thread.flow(Work(same, Handling(resources={"slow": slow})))
except KeyboardInterrupt:
    say("interrupted")
flow = thread.flow(Work(same, Handling()))
flow.feed([1])
flow.end()
say(len(flow.take()))
"""


def test_ctrl_c_while_a_resource_opens(thread: LoopThread) -> None:
    """KeyboardInterrupt, and the opening is cancelled in its own thread."""
    ran = subprocess.run([sys.executable, "-X", "dev", "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == ["1", "cancelled", "interrupted"], ran.stderr
    assert "Error" not in ran.stderr, ran.stderr
