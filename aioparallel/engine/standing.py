"""Where the thread of an event loop stands: which record's handler runs in it, and the user's lines.

Nothing is noted for this while records run: the frames tell. Whatever a handler does, in its first step, in a retry or
after an await, it does within the generator that drives it (:func:`~aioparallel.engine.isolation.drive`), or, with
``isolation="task"``, within its own task; both have the record in a variable.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import selectors
import sys
from types import CodeType, FrameType
from typing import Any, Final

from aioparallel import handlers, keyed_state
from aioparallel.batches import Call
from aioparallel.engine.holds import Line, Look
from aioparallel.engine.isolation import drive
from aioparallel.records import Record

__all__ = ["look_at", "run_queue_wait", "text_of"]

_DRIVERS: Final[frozenset[CodeType]] = frozenset({drive.__code__, handlers._note_end.__code__})
_ENGINE: Final = os.path.dirname(__file__) + os.sep
_OF_STATE: Final = os.path.join(os.path.dirname(keyed_state.__file__), "state", "view.py")  # calls apply()
_WRAPPERS: Final = frozenset({handlers.__file__, _ENGINE + "flow.py", keyed_state.__file__, _OF_STATE})
# The loop's own: it waits for something to happen, or is between two callbacks.
_AT_REST: Final = frozenset({selectors.__file__, asyncio.base_events.__file__, asyncio.events.__file__})
_OUTER, _INNER = 1, 4  # lines told of a stack: the handler's own, and the innermost


def look_at(thread: int, rest: CodeType | None) -> Look | None:
    """What holds the loop that runs in this thread, without lines where it is not written in Python; None: the thread
    has ended, or is between two records.

    ``rest``: what has called the loop, where that has no frames of its own (uvloop).
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None
    lines: list[Line] = []
    while frame is not None and frame.f_code not in _DRIVERS:
        if frame.f_code is rest or frame.f_code.co_filename in _AT_REST:
            break
        lines.append(Line(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname))
        frame = frame.f_back
    lines.reverse()
    if frame is None or frame.f_code not in _DRIVERS:
        return Look(None, "", tuple(lines[-_OUTER - _INNER :]))
    record = _record_of(frame)
    return None if record is None else _look(record, lines)


def _record_of(driver: FrameType) -> Record[Any, Any] | None:
    variables = driver.f_locals
    found = variables.get("record")
    if isinstance(variables, dict):
        # Before Python 3.13 it is a copy that the frame keeps: it would keep the record, too.
        variables.clear()
    if isinstance(found, Call):
        found = found.records[0]
    return found if isinstance(found, Record) else None


def _look(record: Record[Any, Any], lines: list[Line]) -> Look:
    """``lines``: from the driver inwards."""
    wrapped = [number for number, line in enumerate(lines) if line.file in _WRAPPERS]
    users = lines[wrapped[-1] + 1 :] if wrapped else lines
    if not users:
        users = lines[-1:]  # in C, say
    name = users[0].function if users else "?"
    shown = users if len(users) <= _OUTER + _INNER else users[:_OUTER] + users[-_INNER:]
    return Look(record, name, tuple(shown))


def text_of(stack: tuple[Line, ...]) -> str:
    """As in a traceback."""
    lines = []
    for line in stack:
        lines.append(f'  File "{line.file}", line {line.number}, in {line.function}')
        if source := linecache.getline(line.file, line.number).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def run_queue_wait(thread: int) -> float:
    """Seconds for which a thread (by its native id) was ready to run, and had no processor; 0 where nobody says.

    Source: Linux, ``Documentation/scheduler/sched-stats.rst``.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
