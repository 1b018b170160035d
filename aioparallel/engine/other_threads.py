"""Questions from other threads to what lives on an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ask_on"]

T = TypeVar("T")


def ask_on(loop: asyncio.AbstractEventLoop | None, ask: Callable[[], T], timeout: float) -> T:
    """What ``ask()`` returns, called on ``loop`` from any thread: at once, where this is its thread, or it turns no
    more. Raises TimeoutError where the loop does not come to it within ``timeout`` seconds: something holds it."""
    if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
        return ask()
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def answered() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(ask())
            except Exception as error:  # goes on in the thread that has asked
                answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(answered)
    except RuntimeError:
        return ask()  # closed meanwhile
    try:
        return answer.result(timeout)
    except TimeoutError:
        if not answer.cancel():
            return answer.result()  # it has come after all
        if not loop.is_running():
            return ask()  # ended meanwhile
        raise
