"""The signals that end a server: heard beside it, and sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

__all__ = ["ENDING", "end_application", "told_of"]

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends a server."""

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


def end_application() -> bool:
    """End the process as its server ends it: SIGTERM, or, where nobody handles that, as Ctrl-C ends ``asyncio.run()``.

    In a step of the loop of its own, for what the handler raises there falls through the loop. False: nobody has placed
    a handler for either, so a signal would kill what has only been tried out; nothing is done then.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        number = signal.SIGTERM
    elif signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
        number = signal.SIGINT
    else:
        return False
    asyncio.get_running_loop().call_soon(signal.raise_signal, number)
    return True
