"""Who hears of a signal, in whatever order they come and go, and what is there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import uvloop

from aioparallel.event_loop import stopping_signals
from aioparallel.process_signals import before_the_loops, beside_handlers
from tests.support.waiting import until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Handler = Callable[[int, FrameType | None], object]


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What has heard of SIGTERM, an application's own handler among them."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("application"))
    yield heard
    signal.signal(signal.SIGTERM, before)


def run(main: Callable[[], object], factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())  # type: ignore[arg-type]


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_listeners_leave_in_any_order(seen: list[str], first_leaves_first: bool) -> None:
    """Each is told while it listens, the application's handler always; afterwards that is there as before."""
    there = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        stacks = {name: contextlib.ExitStack() for name in ("one", "two")}
        for name, stack in stacks.items():
            stack.enter_context(beside_handlers((signal.SIGTERM,), lambda name=name: seen.append(name)))  # type: ignore[misc]
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: sorted(seen) == ["application", "one", "two"])
        order = ["one", "two"] if first_leaves_first else ["two", "one"]
        stacks[order[0]].close()
        seen.clear()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: sorted(seen) == sorted(["application", order[1]]))
        stacks[order[1]].close()

    run(main, asyncio.new_event_loop)
    assert signal.getsignal(signal.SIGTERM) is there
    seen.clear()
    signal.raise_signal(signal.SIGTERM)  # its loop is closed
    assert seen == ["application"]


def test_who_has_placed_another_over_it_keeps_that(seen: list[str]) -> None:
    """What is beneath passes the signal on, also once nobody listens and its loop has ended."""

    async def main() -> Handler:
        with beside_handlers((signal.SIGTERM,), lambda: seen.append("listener")):
            ours = signal.getsignal(signal.SIGTERM)
            assert callable(ours)

            def over(number: int, frame: FrameType | None) -> None:
                seen.append("over it")
                ours(number, frame)

            signal.signal(signal.SIGTERM, over)
        return ours

    run(main, asyncio.new_event_loop)
    signal.raise_signal(signal.SIGTERM)
    assert seen == ["over it", "application"]


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loops_handler_waits_and_comes_back(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """That of the application, and not another one in its place; other signals reach the loop as ever."""
    seen: list[str] = []

    def take() -> bool:
        seen.append("ours")
        return True

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, seen.append, "application")
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "other")
        with before_the_loops((signal.SIGTERM,), take):
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: seen == ["ours"])
            signal.raise_signal(signal.SIGUSR1)
            await until(lambda: seen == ["ours", "other"])
        await asyncio.sleep(0.05)
        assert seen == ["ours", "other"]
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: seen == ["ours", "other", "application"])

    run(main, factory)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_that_is_ended_by_the_first_signal_hears_of_no_other(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Its handler raises through the loop, which is then run again, as ``run_app`` of aiohttp does it."""
    seen: list[str] = []
    with contextlib.closing(factory()) as loop:
        is_ending = False

        def end() -> None:
            seen.append("loop")
            raise SystemExit

        def take() -> bool:
            seen.append("ours")
            return is_ending

        async def main() -> None:
            loop.add_signal_handler(signal.SIGTERM, end)
            with before_the_loops((signal.SIGTERM,), take):
                for _ in range(2):  # at once: the loop hears of the first one later
                    signal.raise_signal(signal.SIGTERM)
                await until(lambda: len(seen) > 2)

        running = loop.create_task(main())
        with pytest.raises(SystemExit):
            loop.run_until_complete(running)
        is_ending = True
        loop.run_until_complete(running)
    assert seen == ["ours", "loop", "ours"]


@pytest.mark.parametrize("factory", LOOPS)
def test_a_handler_of_no_loop_is_called_all_the_same(
    seen: list[str], factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """It is not taken away: the application wants to hear."""
    there = signal.getsignal(signal.SIGTERM)

    def take() -> bool:
        seen.append("ours")
        return True

    async def main() -> None:
        with before_the_loops((signal.SIGTERM,), take):
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: sorted(seen) == ["application", "ours"])

    run(main, factory)
    assert signal.getsignal(signal.SIGTERM) is there


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_of_our_own_gives_signals_back(
    seen: list[str], factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """``run_sync()`` listens for its length; afterwards the application's handler is there again."""
    there = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        with stopping_signals(asyncio.get_running_loop(), lambda: seen.append("stop")):
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: seen == ["stop"])

    run(main, factory)
    assert signal.getsignal(signal.SIGTERM) is there
