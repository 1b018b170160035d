"""Flows in a thread of their own: fed and read from others, after a fork, and when the thread is gone."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from aioparallel import resources
from aioparallel.engine import loop_thread
from aioparallel.engine.flow import Outcome
from aioparallel.engine.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.work import Work
from aioparallel.errors import ConfigurationError, ConsumerStateError, LoopThreadEnded
from aioparallel.handling import Handling
from aioparallel.policies import RetryPolicy
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


def test_a_take_gives_half_of_the_bound_at_most(thread: LoopThread) -> None:
    """While these are read there is room for as many."""
    flow = thread.flow(Work(same, Handling(max_buffered=8, max_concurrency=2)))
    flow.feed(range(10))
    while flow.stats().unread < 10:
        pass
    assert [len(flow.take()) for _ in range(2)] == [5, 5]
    flow.feed(range(5))


def test_options_of_a_flow(thread: LoopThread) -> None:
    """As those of parallel_map."""

    async def fail(item: int) -> None:
        raise ValueError(item)

    flow = thread.flow(
        Work(
            fail,
            Handling(),
            retry=RetryPolicy(max_attempts=2, first_delay=0.001),
            label=lambda item, index: f"number {item} at {index}",
        )
    )
    flow.feed([7])
    with pytest.raises(ValueError, match="7") as raised:
        flow.take()
    assert "number 7 at 0 failed for good after 2 attempts" in raised.value.__notes__[0]

    async def backwards(item: int) -> int:
        await asyncio.sleep(0.01 * (3 - item))
        return item

    ordered = thread.flow(Work(backwards, Handling(), in_order=True))
    ordered.feed(range(4))
    ordered.end()
    assert [outcome.value for outcome in read(ordered)] == list(range(4))


def test_handlers_have_a_context_of_their_own(thread: LoopThread) -> None:
    """Neither that of the thread that makes the flow, nor that of another flow."""
    variable = contextvars.ContextVar[str]("variable", default="none")

    async def look(item: int) -> str:
        found = variable.get()
        variable.set("another handler's")
        return found

    variable.set("the maker's")
    for _ in range(2):
        flow = thread.flow(Work(look, Handling()))
        flow.feed([1])
        flow.end()
        assert [outcome.value for outcome in read(flow)] == ["none"]


def test_close_waits_for_the_handlers_of_a_flow_that_has_failed(thread: LoopThread) -> None:
    """They are cancelled as soon as it has, and may take their time."""
    events: list[str] = []

    async def handle(item: int) -> None:
        if item == 0:
            raise ValueError
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    flow = thread.flow(Work(handle, Handling()))
    flow.feed([1, 0])
    with pytest.raises(ValueError):  # noqa: PT011
        flow.take()
    flow.close()
    assert events == ["cleaned up"]


def test_a_handler_that_ignores_its_cancellation_is_left_behind(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    """After ``drain_timeout``, with a line in the log that says which."""
    goes_on = threading.Event()

    async def stubborn(item: int) -> None:
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    flow = thread.flow(Work(stubborn, Handling(drain_timeout=0.05)))
    flow.feed([1])
    for _ in range(2):
        closing, _ = in_background(flow.close)
        closing.join(20)
        assert not closing.is_alive()
    goes_on.set()
    assert [one.getMessage() for one in caplog.records] == [
        "handler for item 0 did not end after it was cancelled; it is left behind"
    ]


def test_close_waits_though_another_one_was_cancelled(thread: LoopThread) -> None:
    """As Ctrl-C does: what it has begun goes on."""
    events: list[str] = []

    async def handle(item: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    flow = thread.flow(Work(handle, Handling()))
    flow.feed([1])
    while not flow.stats().in_flight:
        pass

    async def close_and_go_away() -> None:
        closing = asyncio.ensure_future(flow._end(LoopThreadEnded("closed")))
        await asyncio.sleep(0)
        closing.cancel()

    thread.run(close_and_go_away())
    flow.close()
    assert events == ["cleaned up"]


def test_outcomes_of_interrupted_takes_come_later(thread: LoopThread) -> None:
    """Also when the flow is over by then."""
    flow = thread.flow(Work(same, Handling()))
    for item in range(2):
        flow.feed([item])
        thread.call(flow._ask)  # all that is left of a take() that Ctrl-C has ended
        while flow._answers.qsize() <= item:
            pass
    flow.end()
    assert [outcome.value for outcome in flow.take()] == [0]
    while flow._over is None:
        pass
    assert [outcome.value for outcome in read(flow)] == [1]


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


def test_lists_of_failing_keys_are_told_once(thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    """What is left out at once makes room while its list, and the next one, is in the middle of being fed."""

    async def never(item: int) -> None:
        raise AssertionError

    def key(item: int) -> Any:
        return ["not hashable"]

    flow = thread.flow(Work(never, Handling(order_by=key), on_error="skip"))
    for _ in range(3):
        flow.feed([1])
    flow.end()
    assert read(flow) == []
    assert {one.name for one in caplog.records} == {"aioparallel.engine.failure_log"}


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

    monkeypatch.setattr(loop_thread, "loop_factory", fails)
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


def test_the_end_is_said_again_when_the_thread_is_gone(thread: LoopThread) -> None:
    """It was the end, whatever came later."""
    flow = thread.flow(Work(same, Handling()))
    flow.end()
    assert flow.take() == []
    thread.close()
    assert flow.take() == []


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
    assert not thread.is_alive
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
    assert not thread._waiting
    assert flow.stats().succeeded == 10
    flow.close()
    assert flow.take() == []
    with pytest.raises(ConfigurationError, match="must be a Handling"):
        thread.flow(Work(same, {}))  # type: ignore[arg-type]


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
from aioparallel.engine import loop_thread

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
