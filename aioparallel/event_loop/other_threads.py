"""Calls from other threads into an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ask_on", "call_on"]

T = TypeVar("T")


def ask_on(loop: asyncio.AbstractEventLoop | None, ask: Callable[[], T], timeout: float) -> T:
    """Call ``ask()`` on ``loop`` from any thread, and return its result. In the loop's own thread, or if the loop does
    not run, it is called directly. Raises TimeoutError if the loop does not call it within ``timeout`` seconds, because
    something blocks the loop."""
    if loop is None or _is_here(loop):
        return ask()
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def answered() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(ask())
            except Exception as error:  # raised in the calling thread
                answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(answered)
    except RuntimeError:
        return ask()  # the loop was closed meanwhile
    try:
        return answer.result(timeout)
    except TimeoutError:
        if not answer.cancel():
            return answer.result()  # the call has just begun
        if not loop.is_running():
            return ask()  # the loop has ended meanwhile
        raise


def call_on(loop: asyncio.AbstractEventLoop | None, do: Callable[[], object]) -> None:
    """Call ``do()`` on ``loop`` from any thread. In the loop's own thread, or if the loop does not run, it is called
    directly. In another thread this returns at once, and the loop calls it in its next turn."""
    if loop is None or _is_here(loop):
        do()
        return
    try:
        loop.call_soon_threadsafe(do)
    except RuntimeError:
        do()  # the loop was closed meanwhile


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    return not loop.is_running() or asyncio._get_running_loop() is loop
