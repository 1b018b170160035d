"""Flows in a thread of their own: fed and read from others, after a fork, and when the thread is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel.config.handling import Handling
from aioparallel.engine.flow import loop_thread
from aioparallel.engine.flow.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.flow.work import Work
from aioparallel.event_loop import own_loop
from aioparallel.handlers import resources
from aioparallel.handlers.resources import resource
from aioparallel.records.errors import ConsumerStateError, LoopThreadEnded
from tests.support.engine.threads import forever, in_background, read, same


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


def test_flows_that_are_made_at_once_share_what_is_opened(thread: LoopThread) -> None:
    """It is opened once, and closed after what was opened later."""
    events: list[str] = []

    def named(name: str) -> Callable[[], contextlib.AbstractAsyncContextManager[str]]:
        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[str]:
            await asyncio.sleep(0.05)
            events.append(name)
            yield name
            events.append(f"{name} closed")

        return client

    handling = Handling(resources={"a": named("a"), "b": named("b")})
    for making, made in [in_background(lambda: thread.flow(Work(same, handling))) for _ in range(2)]:
        making.join(20)
        assert isinstance(made[0], ThreadedFlow)
    thread.close()
    assert events == ["a", "b", "b closed", "a closed"]


def test_what_opens_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow was refused by then, and nobody else knows of it."""
    monkeypatch.setattr(loop_thread, "_OPEN_TIMEOUT", 0.01)
    monkeypatch.setattr(resources, "_CANCEL_GRACE", 0.01)
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def late() -> AsyncIterator[None]:
        opened = asyncio.get_running_loop().time() + 0.2
        while asyncio.get_running_loop().time() < opened:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        events.append("opened")
        yield
        events.append("closed")

    thread = LoopThread()
    with pytest.raises(TimeoutError):
        thread.flow(Work(same, Handling(resources={"late": late})))
    thread.close()
    assert events == ["opened", "closed"]


def test_a_thread_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes it hears of it."""

    def fails() -> Any:
        raise OSError("too many open files")

    monkeypatch.setattr(own_loop, "loop_factory", fails)
    made, ended = in_background(LoopThread)
    made.join(20)
    (error,) = ended
    assert isinstance(error, LoopThreadEnded)
    assert "too many open files" in str(error)
    assert isinstance(error.__cause__, OSError)


def test_a_flow_that_is_made_while_the_thread_ends(thread: LoopThread) -> None:
    """Its reader and its feeder hear of it, too."""
    opening, goes_on, ends = threading.Event(), threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        opening.set()
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        yield

    async def stubborn(item: int) -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    first = thread.flow(Work(stubborn, Handling(drain_timeout=60)))
    first.feed([1])
    handling = Handling(max_buffered=1, max_concurrency=1, resources={"slow": slow})
    making, made = in_background(lambda: thread.flow(Work(forever, handling)))
    assert opening.wait(20)
    closing, _ = in_background(thread.close)
    with pytest.raises(LoopThreadEnded):
        first.take()
    goes_on.set()
    making.join(20)
    (flow,) = made
    assert isinstance(flow, ThreadedFlow)
    reading, ended = in_background(flow.take)
    feeding, failed = in_background(lambda: flow.feed(range(10)))
    while not (flow._asked and flow._lists):
        pass
    ends.set()
    reading.join(20)
    feeding.join(20)
    assert isinstance(ended[0], LoopThreadEnded)
    assert isinstance(failed[0], LoopThreadEnded)
    closing.join(20)


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


def test_there_is_one_for_each_process_and_another_when_it_has_ended() -> None:
    """So what comes after a close, or a crash, goes on."""
    first = LoopThread.of_this_process()
    assert LoopThread.of_this_process() is first
    first.close()
    assert LoopThread.of_this_process() is not first
    flow = LoopThread.of_this_process().flow(Work(same, Handling()))
    flow.feed([1])
    assert len(flow.take()) == 1
    flow.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_one_of_its_own() -> None:
    """The parent's is not touched, and says so when it is used there."""
    first = LoopThread.of_this_process()
    assert LoopThread.of_this_process() is first
    old = first.flow(Work(same, Handling()))
    held, goes_on = threading.Event(), threading.Event()

    def make() -> None:  # as when another thread makes one
        with LoopThread._making:
            held.set()
            goes_on.wait(20)

    making, _ = in_background(make)
    assert held.wait(20)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # nobody else ends it
        code = 1
        try:
            with contextlib.suppress(LoopThreadEnded):
                old.feed([1])
                os._exit(2)
            flow = LoopThread.of_this_process().flow(Work(same, Handling()))
            flow.feed(range(1_000))
            flow.end()
            code = 0 if len(read(flow)) == 1_000 else 3
            first.close()
        finally:
            os._exit(code)
    goes_on.set()
    making.join(20)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    old.feed([1])
    old.end()
    assert len(read(old)) == 1
    old.close()


def test_the_end_is_said_again_when_the_thread_is_gone(thread: LoopThread) -> None:
    """It was the end, whatever came later."""
    flow = thread.flow(Work(same, Handling()))
    flow.end()
    assert flow.take() == []
    thread.close()
    assert flow.take() == []


def test_it_cannot_be_waited_for_within_itself(thread: LoopThread) -> None:
    """That would be for ever."""

    async def nested(item: int) -> None:
        thread.flow(Work(same, Handling()))

    flow = thread.flow(Work(nested, Handling()))
    flow.feed([1])
    with pytest.raises(ConsumerStateError, match="within its own event loop"):
        flow.take()


SAY = """
import os

def say(text):  # in one write: print() makes two, and those of several threads may lie between each other
    os.write(1, f"{text}\\n".encode())
"""

EXIT = f"""{SAY}
import asyncio, contextlib, threading
from aioparallel import Handling, LoopThread, Work

@contextlib.asynccontextmanager
async def client():
    yield "client"
    await asyncio.to_thread(say, "closed")

async def same(item):
    return item

handling = Handling(max_buffered=2, max_concurrency=1, resources={{"c": client}})
flow = LoopThread.of_this_process().flow(Work(same, handling))

def feed():
    try:
        flow.feed(range(100))
    except Exception as error:
        say(type(error).__name__)

threading.Thread(target=feed).start()
say(len(flow.take()) > 0)
"""


def test_scopes_that_nobody_uses_are_closed(thread: LoopThread) -> None:
    """The oldest first, when there are more than a few; names within a scope are its own."""
    events: list[str] = []

    def client(name: str) -> Any:
        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[str]:
            yield name
            events.append(name)

        return opened

    async def use(item: int) -> str:
        return resource("client", str)

    def run(number: int) -> None:
        flow = thread.flow(Work(use, Handling(resources={"client": client(str(number))})), scope=f"scope {number}")
        flow.feed([1])
        flow.end()
        assert [outcome.value for outcome in read(flow)] == [str(number)]
        flow.close()

    for number in range(12):
        run(number)
    assert events == ["0", "1", "2"]
    run(3)
    assert events == ["0", "1", "2"]
    assert thread.is_idle


def test_the_interpreter_ends(thread: LoopThread) -> None:
    """Though a feeder waits for room; and what is closed then may use threads."""
    ran = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == ["LoopThreadEnded", "True", "closed"], ran.stderr


BLOCKED = f"""{SAY}
import threading
from aioparallel import Handling, LoopThread, Work
from aioparallel.engine.flow import loop_thread

loop_thread._CLOSE_TIMEOUT = 0.05
begun = threading.Event()

async def block(item):
    begun.set()
    threading.Event().wait()

LoopThread.of_this_process().flow(Work(block, Handling())).feed([1])
begun.wait()
say("begun")
"""


def test_the_interpreter_ends_though_a_handler_blocks(thread: LoopThread) -> None:
    """Its thread is left behind."""
    ran = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "begun\n"), ran.stderr


INTERRUPTED = f"""{SAY}
import asyncio, contextlib, signal
from aioparallel import Handling, LoopThread, Work

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
    thread.flow(Work(same, Handling(resources={{"slow": slow}})))
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
