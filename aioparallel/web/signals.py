"""The signals that end a server: heard beside it, and sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["end_application", "told_of"]

_Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def told_of(numbers: tuple[signal.Signals, ...], tell: Callable[[], object]) -> Iterator[None]:
    """Have ``tell`` called, in the event loop, at these signals, after the handler of the server that is there.

    uvicorn notes a signal and looks at it when the application's start, or its end, is over: whoever waits within does
    not hear of it otherwise. Where nobody handles a signal, or Python itself does (Ctrl-C raises KeyboardInterrupt),
    all stays as it is; so it does outside the main thread.
    """
    loop = asyncio.get_running_loop()
    placed: dict[signal.Signals, tuple[_Handler, _Handler]] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            there = signal.getsignal(number)
            if callable(there) and there is not signal.default_int_handler:
                ours = _after(there, loop, tell)
                placed[number] = (there, ours)
                signal.signal(number, ours)
    try:
        yield
    finally:
        for number, (there, ours) in placed.items():
            if signal.getsignal(number) is ours:  # else somebody has put another one there meanwhile
                signal.signal(number, there)


def _after(there: _Handler, loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> _Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(tell)  # first: the other one may raise
        there(number, frame)

    return handle


def end_application() -> None:
    """End the process as its server ends it: SIGTERM, or, where nobody handles that, as Ctrl-C does.

    In a step of the loop of its own, for what the handler raises there falls through the loop.
    """
    handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM if handled else signal.SIGINT)
