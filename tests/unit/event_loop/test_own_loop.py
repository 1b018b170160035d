"""The event loop of the library's own ends, whatever its tasks do."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aioparallel.event_loop import own_loop


def test_tasks_that_begin_new_ones_when_they_end_do_not_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a supervisor does, which starts what has ended once more: that is cancelled for a while, and then left."""
    monkeypatch.setattr(own_loop, "_END_TIMEOUT", 0.2)
    begun = 0
    tasks = set[asyncio.Task[None]]()

    def begin() -> None:
        nonlocal begun
        begun += 1
        task = asyncio.create_task(asyncio.sleep(1_000))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _task: None if is_over.is_set() else begin())

    async def main() -> None:
        begin()

    is_over = threading.Event()
    # Without an end of its own the test would go on for ever.
    timer = threading.Timer(5, is_over.set)
    timer.start()
    with own_loop.own_runner() as runner:
        runner.run(main())
    assert not is_over.is_set()
    timer.cancel()
    assert begun > 2
