"""For use in a child process: sends lines to the parent, and ends with the parent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Final

from aioparallel.event_loop.loop import loop_factory

__all__ = ["run_until_parent_ends", "tell"]

_LEAVE_TIMEOUT: Final = 2.0
"""Seconds for a child to end once its standard input has closed."""


def tell(line: str) -> None:
    """Send a line to the parent, see :meth:`Child.line`."""
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def run_until_parent_ends(work: Coroutine[object, None, None]) -> None:
    """Run ``work``, on uvloop if it is installed. Cancel it when standard input closes, because :meth:`Child.stop` was
    called or the parent has ended. The input itself is ignored."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_until_input_closes(work))


async def _until_input_closes(work: Coroutine[object, None, None]) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    pipe = sys.stdin.fileno()
    closed = False

    def readable() -> None:
        nonlocal closed
        if os.read(pipe, 1024):
            return
        closed = True
        loop.remove_reader(pipe)
        task.cancel()
        # The parent's broker may have ended as well, and leaving it cleanly may take long.
        loop.call_later(_LEAVE_TIMEOUT, os._exit, 1)

    loop.add_reader(pipe, readable)
    try:
        await task
    except asyncio.CancelledError:
        if not closed:
            raise
    finally:
        loop.remove_reader(pipe)
