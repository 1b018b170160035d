"""An event loop of the library's own, for the length of a block, which ends: whatever ignores its cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from aioparallel.event_loop import loop_factory
from aioparallel.left_behind import leave_behind, leave_thread, leave_told

__all__ = ["own_runner"]

logger = logging.getLogger(__name__)

# Seconds for all tasks to end once they are cancelled; for asynchronous generators to close; for calls in threads.
_END_TIMEOUT = 10.0
# Seconds that what closes asynchronous generators has after it was cancelled.
_CANCEL_GRACE = 0.5
_numbers = count(1)


@contextlib.contextmanager
def own_runner() -> Iterator[asyncio.Runner]:
    """``asyncio.Runner`` on uvloop where there is one. At its end it waits ten seconds, and no longer, for each of:
    tasks that it has cancelled, asynchronous generators that it closes, and calls in threads (``asyncio.to_thread``).
    Ctrl-C meanwhile ends the waiting. What goes on is named in the log, with the place where it stands.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        # The loop does not tell which one it has made by itself.
        name = f"asyncio-{next(_numbers)}"
        threads = ThreadPoolExecutor(thread_name_prefix=name)
        runner.get_loop().set_default_executor(threads)
        try:
            yield runner
        finally:
            runner.run(_end(threads, name))


async def _end(threads: ThreadPoolExecutor, name: str) -> None:
    await _end_tasks()
    closing = asyncio.create_task(asyncio.get_running_loop().shutdown_asyncgens(), name="aioparallel-generators")
    if not await _wait((closing,), _END_TIMEOUT):
        closing.cancel()
        await _wait((closing,), _CANCEL_GRACE)
        leave_told(_others() - {closing}, _END_TIMEOUT)
        leave_behind((closing,))
    await _end_threads(threads, name)


def _others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _wait(tasks: Collection[asyncio.Future[Any]], seconds: float) -> bool:
    """Whether they have ended by then. Cut short by Ctrl-C."""
    with contextlib.suppress(asyncio.CancelledError):
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        return not pending
    return all(task.done() for task in tasks)


async def _end_tasks() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _END_TIMEOUT
    cancelled: set[asyncio.Task[Any]] = set()
    while tasks := _others():
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        # Some begin a new one when they end, for ever.
        if not await _wait(tasks, deadline - loop.time()) or loop.time() >= deadline:
            break
    leave_told(_others(), _END_TIMEOUT)
    for task in cancelled:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler(
                {"message": "a task failed while its event loop ended", "exception": error, "task": task}
            )


async def _end_threads(threads: ThreadPoolExecutor, name: str) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def told() -> None:
        if not ended.done():
            ended.set_result(None)

    def end() -> None:
        threads.shutdown()
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(told)

    # No pool's thread: the interpreter would wait for it.
    threading.Thread(target=end, name="aioparallel-threads-end", daemon=True).start()
    if await _wait((ended,), _END_TIMEOUT):
        return
    # What is closed with the loop is one without threads.
    loop.set_default_executor(ThreadPoolExecutor(1))
    stacks = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name.startswith(f"{name}_") and thread.ident in stacks:
            leave_thread(thread)
            logger.error(
                "A call in a thread (asyncio.to_thread, run_in_executor) goes on %g s after its event loop was to end, "
                "and keeps the process until it returns: give it a time limit. It stands at:\n%s",
                _END_TIMEOUT,
                "".join(traceback.format_stack(stacks[thread.ident])).rstrip("\n"),
                extra={"action": "thread_not_stopped"},
            )
