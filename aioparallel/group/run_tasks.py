"""The tasks of a run, and the error with which the run ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from aioparallel.event_loop.left_behind import ended
from aioparallel.event_loop.waiting import why_ended
from aioparallel.group.run_state import RunState
from aioparallel.records.user_errors import repr_of

__all__ = ["RunTasks"]

logger = logging.getLogger(__name__)

_END_TIMEOUT: Final = 5.0
"""Seconds that tasks get to end once they are cancelled: some await a database driver."""


class RunTasks:
    """Tasks that end the run if one of them raises. ``follow()`` is called when the run ends with an error."""

    def __init__(self, state: RunState, follow: Callable[[], None]) -> None:
        self._state = state
        self._follow = follow
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_late = False
        self.failed_at_end: BaseException | None = None
        """An error of a commit or an extension, raised although the run was ending already."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task of the run."""
        task = asyncio.get_running_loop().create_task(work, name=f"aioparallel-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = why_ended(task, is_wanted=self._state.is_running)
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run, which raises this error. A later one is logged."""
        if error is not self._state.failure and not self._state.fail(error):
            # All records in flight may fail for the same reason, so only the first late failure is an error.
            level = logging.DEBUG if self._failed_late else logging.ERROR
            self._failed_late = True
            logger.log(level, "after the end of the run: %s", repr_of(error), extra={"action": "late_failure"})
        self._follow()

    def fail_at_end(self, error: BaseException) -> None:
        """End the run with an error of a commit or an extension. It is raised even if the run is ending already."""
        if self._state.ending.is_set() and self._state.failure is None:
            self.failed_at_end = self.failed_at_end or error
        self.fail(error)

    def cancel(self) -> Collection[asyncio.Task[None]]:
        """Cancel all tasks. Returns them, for :meth:`end`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    @staticmethod
    async def end(tasks: Collection[asyncio.Task[None]]) -> None:
        """Cancel these tasks, and wait until they have ended."""
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        await ended(tasks, _END_TIMEOUT)
