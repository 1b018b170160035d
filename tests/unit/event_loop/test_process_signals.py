"""Who hears of a signal, in whatever order they come and go, and what is there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import uvloop

from aioparallel.event_loop.loop import stopping_signals
from aioparallel.event_loop.process_signals import before_the_loops, beside_handlers
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


class Noted:
    """Notes each signal that it is asked about, and takes it or not."""

    def __init__(self, seen: list[str], name: str = "ours", takes: bool = True) -> None:
        self._seen = seen
        self._name = name
        self.takes = takes

    def __call__(self) -> bool:
        self._seen.append(self._name)
        return self.takes


@pytest.mark.parametrize("factory", LOOPS)
def test_the_second_signal_comes_as_the_loop_is_run_again(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """In its first step, after the first signal has ended its run."""
    seen: list[str] = []
    taker = Noted(seen, takes=False)
    with contextlib.closing(factory()) as loop:

        def end() -> None:
            seen.append("loop")
            raise SystemExit

        async def main() -> None:
            loop.add_signal_handler(signal.SIGTERM, end)
            with before_the_loops((signal.SIGTERM,), taker):
                signal.raise_signal(signal.SIGTERM)
                await until(lambda: len(seen) > 2)

        running = loop.create_task(main())
        with pytest.raises(SystemExit):
            loop.run_until_complete(running)
        taker.takes = True
        loop.call_soon(signal.raise_signal, signal.SIGTERM)
        loop.run_until_complete(running)
    assert seen == ["ours", "loop", "ours"]


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_that_is_run_again_after_no_signal(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """What a handler of a request has raised ends ``run_app`` of aiohttp, too. The next signal is ours all the same."""
    seen: list[str] = []
    with contextlib.closing(factory()) as loop:

        async def main() -> None:
            loop.add_signal_handler(signal.SIGTERM, seen.append, "application")
            with before_the_loops((signal.SIGTERM,), Noted(seen)):
                await asyncio.sleep(0.2)
                signal.raise_signal(signal.SIGTERM)
                await until(lambda: bool(seen))
                await asyncio.sleep(0.05)

        running = loop.create_task(main())
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        loop.run_until_complete(running)
    assert seen == ["ours"]


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_that_is_run_again_gets_its_signals_back(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Also where the fd that it had in its first run is nobody's by then."""
    seen: list[str] = []
    low = [os.dup(0) for _ in range(4)]
    with contextlib.closing(factory()) as loop:

        async def main() -> None:
            loop.add_signal_handler(signal.SIGTERM, seen.append, "application")
            with before_the_loops((signal.SIGTERM,), Noted(seen)):
                await again.wait()
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: bool(seen))

        again = asyncio.Event()
        running = loop.create_task(main())
        loop.call_soon(loop.stop)
        loop.run_forever()
        for one in low:
            os.close(one)
        again.set()
        loop.run_until_complete(running)
    assert seen == ["application"]


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_gets_more_handlers_meanwhile(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """For another signal, and for the same one: ours comes before them."""
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, seen.append, "application")
        with before_the_loops((signal.SIGTERM,), Noted(seen)):
            for number, name in ((signal.SIGUSR1, "other"), (signal.SIGTERM, "new")):
                loop.add_signal_handler(number, seen.append, name)
                await asyncio.sleep(0.2)
                signal.raise_signal(signal.SIGTERM)
                await until(lambda: bool(seen))
                await asyncio.sleep(0.05)
                assert seen == ["ours"]
                seen.clear()
            signal.raise_signal(signal.SIGUSR1)
            await until(lambda: seen == ["other"])
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: seen == ["other", "new"])

    run(main, factory)


@pytest.mark.parametrize("factory", LOOPS)
def test_signals_that_come_as_the_block_ends_are_passed_on(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The loop hears of each that was not taken."""
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, seen.append, "application")
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "other")
        with before_the_loops((signal.SIGTERM,), Noted(seen)):
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
        await until(lambda: sorted(seen) == ["application", "other"])

    run(main, factory)


@pytest.mark.parametrize("first_leaves_first", [True, False])
@pytest.mark.parametrize("factory", LOOPS)
def test_several_take_signals_from_a_loop(
    factory: Callable[[], asyncio.AbstractEventLoop], first_leaves_first: bool
) -> None:
    """Each is asked while it is there, the loop hears where none has taken it, and its handler comes back."""
    seen: list[str] = []

    async def hears(*expected: str) -> None:
        seen.clear()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(seen) >= len(expected))
        await asyncio.sleep(0.05)
        assert seen == [*expected]

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, seen.append, "application")
        there = signal.getsignal(signal.SIGTERM)
        takers = {name: Noted(seen, name, takes=False) for name in ("one", "two")}
        stacks = {name: contextlib.ExitStack() for name in takers}
        for name, stack in stacks.items():
            stack.enter_context(before_the_loops((signal.SIGTERM,), takers[name]))
        await hears("one", "two", "application")
        first, last = stacks if first_leaves_first else reversed(stacks)
        takers[last].takes = True
        await hears("one", "two")
        stacks[first].close()
        await hears(last)
        stacks[last].close()
        await hears("application")
        assert signal.getsignal(signal.SIGTERM) is there

    run(main, factory)


@pytest.mark.parametrize("factory", LOOPS)
def test_who_only_listens_is_no_hindrance(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Whichever of the two comes or goes first: the loop's handler does not hear of what is taken, and comes back."""
    seen: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, seen.append, "application")
        there = signal.getsignal(signal.SIGTERM)
        listening, taking, listening_last = (contextlib.ExitStack() for _ in range(3))
        listening.enter_context(beside_handlers((signal.SIGTERM,), lambda: seen.append("listener")))
        taking.enter_context(before_the_loops((signal.SIGTERM,), Noted(seen)))
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: sorted(seen) == ["listener", "ours"])
        listening.close()
        listening_last.enter_context(beside_handlers((signal.SIGTERM,), lambda: seen.append("listener")))
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: sorted(seen) == ["listener", "listener", "ours", "ours"])
        taking.close()
        listening_last.close()
        assert signal.getsignal(signal.SIGTERM) is there

    run(main, factory)


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
