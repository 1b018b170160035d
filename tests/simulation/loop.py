"""A virtual event loop that knows its timers, and says what somebody has left behind on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.support.virtual_time import VirtualLoop

__all__ = ["RecordingLoop"]

# What is on its way between a client and the broker in memory outlives the client, as on a wire.
_WIRE = "aioparallel.testing."


class RecordingLoop(VirtualLoop):
    """Notes each timer until it has run or was cancelled, and what nobody has caught."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: dict[int, tuple[asyncio.TimerHandle, str]] = {}
        self._numbers = 0
        self.uncaught: list[str] = []
        self.set_exception_handler(self._note_uncaught)

    def call_at(  # type: ignore[override]  # what is passed on is the callback's business
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._numbers = number = self._numbers + 1

        def run() -> None:
            del self._noted[number]
            callback(*args)

        handle = super().call_at(when, run, context=context)
        self._noted[number] = handle, name_of(callback)
        if number % 1_000 == 0:
            self._noted = {number: noted for number, noted in self._noted.items() if not noted[0].cancelled()}
        return handle

    def timers(self) -> list[str]:
        """What waits for its time, but for requests that are on their way."""
        return [name for handle, name in self._noted.values() if not handle.cancelled() and not name.startswith(_WIRE)]

    def tasks(self) -> list[str]:
        """The tasks that have not ended, without the one that asks."""
        mine = asyncio.current_task(self)
        left = sorted(asyncio.all_tasks(self) - {mine}, key=asyncio.Task.get_name)
        return [f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())}" for task in left]

    def _note_uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.uncaught.append(f"{context.get('message')}: {context.get('exception')!r}")


def name_of(callback: object) -> str:
    """Module and name of what a timer calls."""
    function = getattr(callback, "func", callback)  # of a partial
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
