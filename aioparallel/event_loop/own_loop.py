"""An event loop for a ``with`` block. It ends in bounded time, even if tasks ignore their cancellation."""

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

from aioparallel.event_loop.left_behind import leave_behind, leave_thread, leave_told
from aioparallel.event_loop.loop import loop_factory

__all__ = ["own_runner"]

logger = logging.getLogger(__name__)

# Seconds for each of: cancelled tasks to end, asynchronous generators to close, calls in threads to return.
_END_TIMEOUT = 10.0
# Seconds that the closing of asynchronous generators has to end after it was cancelled.
_CANCEL_GRACE = 0.5
_numbers = count(1)


@contextlib.contextmanager
def own_runner() -> Iterator[asyncio.Runner]:
    """``asyncio.Runner``, on uvloop if that is installed. At the end it waits at most ten seconds for each of: the
    tasks that it cancels, the asynchronous generators that it closes, and calls in threads (``asyncio.to_thread``).
    Ctrl-C ends the wait. What still runs then is logged, with its stack.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        # The executor that a loop makes by itself cannot be read, so set one.
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
    """Return whether all have ended within ``seconds``. Ctrl-C ends the wait."""
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
        # A task may begin a new one when it ends, again and again, so the deadline is for all together.
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

    def set_ended() -> None:
        if not ended.done():
            ended.set_result(None)

    def end() -> None:
        threads.shutdown()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(set_ended)

    # Not in a pool: the interpreter would wait for its thread at exit.
    threading.Thread(target=end, name="aioparallel-threads-end", daemon=True).start()
    if await _wait((ended,), _END_TIMEOUT):
        return
    # The loop waits for its executor when it closes, so give it one without threads.
    loop.set_default_executor(ThreadPoolExecutor(1))
    stacks = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name.startswith(f"{name}_") and thread.ident in stacks:
            leave_thread(thread)
            logger.error(
                "A call in a thread (asyncio.to_thread, run_in_executor) still runs %g s after its event loop was to "
                "end, and keeps the process alive until it returns: give it a time limit. It is at:\n%s",
                _END_TIMEOUT,
                "".join(traceback.format_stack(stacks[thread.ident])).rstrip("\n"),
                extra={"action": "thread_not_stopped"},
            )
