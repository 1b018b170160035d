"""A flow of a loop thread: fed, read and closed from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from typing import Any

import pytest

from aioparallel.config.handling import Handling
from aioparallel.config.policies import RetryPolicy
from aioparallel.engine.flow.loop_thread import LoopThread
from aioparallel.engine.flow.work import Work
from aioparallel.records.errors import ConfigurationError, LoopThreadEnded
from tests.support.engine.threads import forever, in_background, read, same


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


def test_a_take_waits_as_long_as_it_is_told(thread: LoopThread) -> None:
    """None: nothing has come. What comes later is given once."""
    flow = thread.flow(Work(same, Handling(), in_order=True))
    assert flow.take(0.01) is None
    assert flow.take(0) is None
    flow.feed(range(3))
    found: list[Any] = []
    while len(found) < 3:
        found += flow.take(0.01) or []
    assert [outcome.value for outcome in found] == [0, 1, 2]
    assert flow.take(0.01) is None
    flow.end()
    assert flow.take(10) == []
    assert flow.take(10) == []


def test_an_aborted_flow_cancels_what_runs(thread: LoopThread) -> None:
    """Nobody waits for it there; its reader hears of it, and nothing more starts."""
    cancelled = threading.Event()
    started: list[int] = []

    async def handle(item: int) -> None:
        started.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    flow = thread.flow(Work(handle, Handling(max_concurrency=1)))
    flow.feed(range(3))
    assert flow.take(0.05) is None
    flow.abort(LoopThreadEnded("the task has ended"))
    assert cancelled.wait(10)
    with pytest.raises(LoopThreadEnded, match="the task has ended"):
        flow.take()
    with pytest.raises(LoopThreadEnded, match="the task has ended"):
        flow.feed([3])
    flow.close()
    assert started == [0]


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
    (standing,) = (one.getMessage() for one in caplog.records)
    assert standing.startswith("handler for item 0 still runs although it was cancelled twice")
    assert "in stubborn" in standing


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
    assert {one.name for one in caplog.records} == {"aioparallel.engine.outcomes.failure_log"}


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


def test_hanging_handlers_are_cancelled_by_close(thread: LoopThread) -> None:
    """And close() waits for them."""
    flow = thread.flow(Work(forever, Handling()))
    flow.feed(range(100))
    flow.close()
    assert flow.stats().in_flight == 0


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
