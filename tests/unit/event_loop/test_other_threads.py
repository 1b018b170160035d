"""Asking what lives on an event loop from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from aioparallel.event_loop.other_threads import ask_on, call_on


def in_thread(do: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that does it, and what that has given."""
    given: list[object] = []

    def run() -> None:
        try:
            given.append(do())
        except Exception as error:
            given.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, given


def test_it_is_asked_on_the_loop() -> None:
    """In its thread; what it raises comes back."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        here = threading.get_ident()
        assert ask_on(loop, threading.get_ident, 0) == here
        assert await asyncio.to_thread(ask_on, loop, threading.get_ident, 10) == here
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(ask_on, loop, lambda: 1 / 0, 10)

    asyncio.run(main())


def test_a_loop_that_is_held() -> None:
    """Is waited for so long; what it comes to later is not asked any more."""
    asked: list[None] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        thread, given = in_thread(lambda: ask_on(loop, lambda: asked.append(None), 0.05))
        thread.join()  # holds it
        assert isinstance(given[0], TimeoutError)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert asked == []


def test_a_loop_that_has_ended() -> None:
    """Is not waited for."""
    loop = asyncio.new_event_loop()
    assert ask_on(loop, lambda: 1, 10) == 1
    loop.close()
    assert ask_on(loop, lambda: 2, 10) == 2
    assert ask_on(None, lambda: 3, 10) == 3


def test_a_call_on_a_loop() -> None:
    """Is made in its thread: at once, or in its next turn, for which it is woken."""
    called: list[int] = []

    async def main() -> None:
        loop, here, over = asyncio.get_running_loop(), threading.get_ident(), asyncio.Event()

        def call() -> None:
            called.append(threading.get_ident())
            over.set()

        call_on(loop, call)
        assert called == [here]
        over.clear()
        threading.Thread(target=call_on, args=(loop, call)).start()
        async with asyncio.timeout(60):
            await over.wait()
        assert called == [here, here]

    with asyncio.Runner(debug=True) as runner:
        runner.run(main())


def test_a_call_on_a_loop_that_does_not_run() -> None:
    """Is made at once, also where the loop was closed in the last moment."""
    called: list[int] = []
    loop = asyncio.new_event_loop()
    call_on(loop, lambda: called.append(1))
    loop.close()
    call_on(loop, lambda: called.append(2))
    call_on(None, lambda: called.append(3))

    loop.is_running = lambda: True  # type: ignore[method-assign]  # as if it were closed after the question
    call_on(loop, lambda: called.append(4))
    assert called == [1, 2, 3, 4]
