"""in_threads: how many calls run at a time, their order, and what happens to cancelled calls."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from aioparallel import RetryPolicy, in_threads, parallel_map
from aioparallel.config.callables import is_async
from aioparallel.handlers.blocking import threads
from aioparallel.handlers.blocking.thread_pool import ThreadPool
from aioparallel.handlers.blocking.threads import InThreads
from aioparallel.records.errors import HandlerTimeout

WAIT = 20.0
"""Seconds: against what hangs, not a verdict."""


async def until(condition: object, *arguments: object) -> None:
    """Waits for the condition."""
    assert callable(condition)
    async with asyncio.timeout(WAIT):
        while not condition(*arguments):
            await asyncio.sleep(0.001)


class Gate:
    """A function that blocks until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.began: list[object] = []
        self.ended: list[object] = []

    def __call__(self, item: object) -> object:
        self.began.append(item)
        assert self.opened.wait(WAIT)
        self.ended.append(item)
        return item


async def test_as_many_as_there_are_threads_run_at_once() -> None:
    """All eight calls meet at a barrier, and no more run at a time. The results are those of the function."""
    barrier = threading.Barrier(8)

    def meet(number: int) -> tuple[int, str]:
        barrier.wait(WAIT)
        return 2 * number, threading.current_thread().name

    handler = in_threads(meet, threads=8)
    given = [o.result() async for o in parallel_map(handler, range(80), max_concurrency=20, in_order=True)]
    assert [number for number, _ in given] == [2 * n for n in range(80)]
    assert {name for _, name in given} <= {f"aioparallel-meet-{n}" for n in range(1, 9)}
    assert handler.stats().waiting == 0
    assert handler.stats().threads == 8


async def test_it_is_a_handler_for_all_checks() -> None:
    """It counts as async, and has the name of its function; so does a decorated one."""

    @in_threads(threads=2)
    def double(number: int) -> int:
        """Returns twice the number."""
        return 2 * number

    assert is_async(double)
    assert (double.__name__, double.__doc__) == ("double", "Returns twice the number.")  # type: ignore[attr-defined]
    assert await double(4) == 8
    same: InThreads[int, int] = in_threads(lambda n: n)
    assert await same(4) == 4
    larger: Callable[[int], int] = partial(max, 3)
    assert await in_threads(larger)(4) == 4
    assert repr(double) == "<in_threads of double, 2 at most>"


async def test_context_variables_are_passed_on() -> None:
    """The function sees those of the awaiting coroutine. What it sets stays in its thread."""
    name = contextvars.ContextVar("name", default="none")

    def look(_: object) -> str:
        found = name.get()
        name.set("changed")
        return found

    handler = in_threads(look, threads=1)
    name.set("mine")
    assert [await handler(0), await handler(0), name.get()] == ["mine", "mine", "mine"]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_it_raises_reaches_who_awaits(error: BaseException) -> None:
    """The same object, even if it is not an Exception. The thread continues."""

    def fail(item: object) -> object:
        if item:
            raise error
        return item

    handler = in_threads(fail, threads=1)
    with pytest.raises(type(error)) as raised:
        await handler(1)
    assert raised.value is error
    assert await handler(0) == 0
    assert handler.stats().threads == 1


async def test_stop_iteration_becomes_a_runtime_error() -> None:
    """As in any coroutine."""

    def end(_: object) -> None:
        raise StopIteration(1)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_threads(end)(0)


async def test_a_call_that_waits_is_taken_out() -> None:
    """It is cancelled at once, and never runs."""
    gate = Gate()
    handler = in_threads(gate, threads=1)
    first = asyncio.create_task(handler(1))
    await until(lambda: gate.began)
    second = asyncio.create_task(handler(2))
    await until(lambda: handler.stats().waiting)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not first.done()
    gate.opened.set()
    assert await first == 1
    assert gate.ended == [1]


async def test_a_call_that_runs_is_waited_for() -> None:
    """However often it is cancelled. CancelledError follows its end."""
    gate = Gate()
    call = asyncio.create_task(in_threads(gate)(1))
    await until(lambda: gate.began)
    for _ in range(3):
        call.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not call.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert gate.ended == [1]


async def test_order_of_key_and_retry_wait_for_the_thread_after_its_deadline() -> None:
    """The attempt has timed out but continues in its thread. The next one starts when it has ended."""
    lock, running, log = threading.Lock(), set[str](), list[tuple[str, int]]()
    attempts: dict[tuple[str, int], int] = {}

    def work(item: tuple[str, int]) -> None:
        with lock:
            assert item[0] not in running
            running.add(item[0])
            attempts[item] = attempts.get(item, 0) + 1
        if item[1] == 1 and attempts[item] == 1:
            time.sleep(0.3)  # past its deadline
        with lock:
            running.discard(item[0])
            log.append(item)

    items = [(key, number) for number in range(4) for key in "ab"]
    given = [
        o
        async for o in parallel_map(
            in_threads(work, threads=8),
            items,
            key=lambda item: item[0],
            timeout=0.1,
            retry=RetryPolicy(max_attempts=20, first_delay=0),
        )
    ]
    assert {o.item: o.attempts for o in given if o.item[1] == 1}.keys() == {("a", 1), ("b", 1)}
    assert all(o.attempts >= 2 for o in given if o.item[1] == 1)
    for key in "ab":
        numbers = [number for name, number in log if name == key]
        assert numbers == sorted(numbers)


async def test_a_deadline_begins_when_the_call_does() -> None:
    """Eight calls of 0.2 s in two threads, each within its deadline of 0.6 s, although the last one waits as long."""

    def work(_: int) -> None:
        time.sleep(0.2)

    handler = in_threads(work, threads=2)
    given = [o async for o in parallel_map(handler, range(8), timeout=0.6, on_error="emit")]
    assert [o.error for o in given] == [None] * 8
    assert max(o.seconds for o in given) > 0.6


async def test_a_call_past_its_deadline_has_timed_out() -> None:
    """With the engine's own error, although its function returned."""
    given = [o async for o in parallel_map(in_threads(time.sleep), [0.3], timeout=0.05, on_error="emit")]
    assert isinstance(given[0].error, HandlerTimeout)


PROGRAM = """
import asyncio, logging, sys, threading, time
from aioparallel import Handling, Work, in_threads, parallel_map
from aioparallel import mapping
logging.basicConfig(format="%(message)s", stream=sys.stdout)
began = threading.Event()

def stuck(item):
    began.set()
    time.sleep(1_000)

class Source:
    async def __aiter__(self):
        yield 1
        await asyncio.to_thread(began.wait)
        raise ValueError("the source failed")

async def main():
    from aioparallel.engine.run.processor import Processor
    close = Processor.close
    Processor.close = lambda self, timeout: close(self, 0.2)
    outcomes = parallel_map(in_threads(stuck), Source())
    reading = asyncio.create_task(anext(aiter(outcomes)))
    await asyncio.to_thread(began.wait)
    reading.cancel()
    try:
        await reading
    except asyncio.CancelledError:
        print("closed", flush=True)

asyncio.run(main())
print("over", flush=True)
"""


def test_a_stuck_thread_holds_neither_close_nor_the_program_up() -> None:
    """It is named and left behind. The event loop ends, and so does the interpreter."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "handler for item 0 did not end after it was cancelled; it is left behind\nclosed\nover\n"


async def test_a_stuck_call_is_named_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """Like any handler that does not stop."""
    gate = Gate()

    async def read() -> list[object]:
        return [o.error async for o in parallel_map(in_threads(gate), ["x"], timeout=0.05, on_error="emit")]

    reading = asyncio.create_task(read())
    await until(lambda: "still runs although it was cancelled" in caplog.text)
    assert not reading.done()
    gate.opened.set()
    assert [type(error) for error in await reading] == [HandlerTimeout]


def test_one_object_serves_loops_one_after_the_other() -> None:
    """With the same threads."""

    def place(n: int) -> tuple[int, int]:
        return n, threading.get_ident()

    handler = in_threads(place, threads=1)

    async def call() -> tuple[int, int]:
        return await handler(1)

    assert asyncio.run(call()) == asyncio.run(call())


async def test_a_loop_that_is_gone_does_not_break_the_thread() -> None:
    """The loop is closed while the call runs. The same thread serves the next call."""
    gate = Gate()
    handler = in_threads(gate, threads=1)

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        waiting = handler(1)
        call = loop.create_task(waiting)
        loop.run_until_complete(until(lambda: gate.began))
        call._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        waiting.close()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join, WAIT)
    gate.opened.set()
    assert await handler(2) == 2
    assert handler.stats().threads == 1
    gc.collect()


async def test_a_thread_that_cannot_start_fails_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another thread can take the call."""
    gate, start = Gate(), ThreadPool._start
    handler = in_threads(gate, threads=2)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPool, "_start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        await handler(0)
    monkeypatch.setattr(ThreadPool, "_start", start)
    first = asyncio.create_task(handler(1))
    await until(lambda: gate.began)
    monkeypatch.setattr(ThreadPool, "_start", refuse)
    second = asyncio.create_task(handler(2))
    await until(lambda: handler.stats().waiting)
    gate.opened.set()
    assert [await first, await second] == [1, 2]


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; the next call starts a new one. All end with the object."""
    monkeypatch.setattr(threads, "_IDLE", 0.02)
    handler: InThreads[int, int] = in_threads(abs)
    assert await handler(-1) == 1
    await until(lambda: not handler.stats().threads)
    assert await handler(-2) == 2
    monkeypatch.setattr(threads, "_IDLE", 1_000)
    other = in_threads(Gate.__init__.__name__.__contains__)
    await other("x")
    names = [thread for thread in threading.enumerate() if thread.name.startswith("aioparallel-__contains__")]
    assert names
    del other
    gc.collect()
    await until(lambda: not any(thread.is_alive() for thread in names))


async def test_a_long_wait_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of waiting calls, and advice."""
    monkeypatch.setattr(threads, "_LONG_WAIT", 0.0)
    with caplog.at_level(logging.WARNING):
        [o async for o in parallel_map(in_threads(time.sleep, threads=1), [0.001] * 20)]
    assert [record.__dict__["action"] for record in caplog.records] == ["blocking_wait"]
    assert "free thread" in caplog.text


async def coroutine(_: object) -> None: ...
def generator(_: object) -> object:
    yield 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: in_threads(coroutine), "must be a plain function that blocks"),
        (lambda: in_threads(partial(coroutine)), "must be a plain function that blocks"),
        (lambda: in_threads(generator), "without `yield`"),
        (lambda: in_threads(3), "in_threads handler=3: must be a plain function"),  # type: ignore[call-overload]
        (lambda: in_threads(coroutine(0)), "without ()"),  # type: ignore[call-overload]
        (lambda: in_threads(lambda: 0), "must take one argument"),  # type: ignore[arg-type, misc]
        (lambda: in_threads(abs, threads=0), "in_threads threads=0: must be a whole number of at least 1"),
        (lambda: in_threads(abs, threads=True), "threads=True"),
        (lambda: in_threads(threads="9"), None),  # type: ignore[call-overload]
        (lambda: in_threads(threads=0)(abs), "threads=0"),
    ],
)
def test_what_is_refused(make: object, text: str | None) -> None:
    """At construction, with what was found and what is allowed."""
    assert callable(make)
    if text is None:
        assert callable(make())  # told when it is used
        return
    with pytest.raises(ValueError, match=r"handler=|threads=") as raised:
        make()
    assert text in str(raised.value)


async def test_a_burst_is_run_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads end, calls are cancelled, and others arrive, all at once: each call ends, and none runs twice."""
    monkeypatch.setattr(threads, "_IDLE", 0.0005)
    ran = SimpleNamespace(count=0)
    lock = threading.Lock()

    def work(n: int) -> int:
        with lock:
            ran.count += 1
        time.sleep(0.0005 * (n % 3))
        return n

    handler = in_threads(work, threads=5)
    for turn in range(20):
        calls = [asyncio.create_task(handler(n)) for n in range(50)]
        await asyncio.sleep(0.001 * (turn % 3))
        for call in calls[::7]:
            call.cancel()
        async with asyncio.timeout(WAIT):
            ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [n for n in ended if isinstance(n, int)] == [n for n in range(50) if ended[n] == n]
        assert sum(isinstance(n, int) for n in ended) >= 42
    assert ran.count <= 20 * 50
    await until(lambda: handler.stats() == (0, 0, 0))
