"""Samples the stack of an event loop's thread: which record's handler runs, and at which lines.

Nothing is recorded for this while records run: the frames show it. A handler always runs within the generator that
drives it (:func:`~aioparallel.engine.isolation.drive`) or, with ``isolation="task"``, within its own task. Both have
the record in a local variable.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import selectors
import sys
from types import CodeType, FrameType
from typing import Any, Final

from aioparallel.config import state
from aioparallel.engine.isolation import drive
from aioparallel.engine.watch.blockages import StackLine, StackSample
from aioparallel.handlers import stack
from aioparallel.handlers.batches import Call
from aioparallel.records.record import Record

__all__ = ["format_stack", "run_queue_wait", "sample_stack"]

_DRIVERS: Final[frozenset[CodeType]] = frozenset({drive.__code__, stack._note_end.__code__})
_ENGINE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PACKAGE: Final = os.path.dirname(_ENGINE.rstrip(os.sep))
_OF_STATE: Final = os.path.join(_PACKAGE, "persistence", "state", "view.py")  # calls apply()
_OF_TRACES: Final = os.path.join(_PACKAGE, "observe", "traces", "opentelemetry.py")
_WRAPPERS: Final = frozenset(
    {stack.__file__, _ENGINE + os.path.join("flow", "flow.py"), state.__file__, _OF_STATE, _OF_TRACES}
)
# The loop's own code: it waits for I/O, or is between two callbacks.
_AT_REST: Final = frozenset({selectors.__file__, asyncio.base_events.__file__, asyncio.events.__file__})
_OUTER, _INNER = 1, 4  # lines shown of a stack: the handler's own, and the innermost


def sample_stack(thread: int, rest: CodeType | None) -> StackSample | None:
    """Return what runs in this event loop's thread, without lines if it is not written in Python. None: the thread
    has ended, or is between two records.

    ``rest``: the caller of a loop that has no frames of its own (uvloop).
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return None
    lines: list[StackLine] = []
    while frame is not None and frame.f_code not in _DRIVERS:
        if frame.f_code is rest or frame.f_code.co_filename in _AT_REST:
            break
        lines.append(StackLine(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname))
        frame = frame.f_back
    lines.reverse()
    if frame is None or frame.f_code not in _DRIVERS:
        return StackSample(None, "", tuple(lines[-_OUTER - _INNER :]))
    record = _record_of(frame)
    return None if record is None else _sample(record, lines)


def _record_of(driver: FrameType) -> Record[Any, Any] | None:
    variables = driver.f_locals
    found = variables.get("record")
    if isinstance(variables, dict):
        # Before Python 3.13 the frame keeps this copy, and with it the record.
        variables.clear()
    if isinstance(found, Call):
        found = found.records[0]
    return found if isinstance(found, Record) else None


def _sample(record: Record[Any, Any], lines: list[StackLine]) -> StackSample:
    """Make a sample with the lines of the user's code. ``lines``: from the driver inwards."""
    wrapped = [number for number, line in enumerate(lines) if line.file in _WRAPPERS]
    users = lines[wrapped[-1] + 1 :] if wrapped else lines
    if not users:
        users = lines[-1:]  # for example if the handler is written in C
    name = users[0].function if users else "?"
    shown = users if len(users) <= _OUTER + _INNER else users[:_OUTER] + users[-_INNER:]
    return StackSample(record, name, tuple(shown))


def format_stack(stack: tuple[StackLine, ...]) -> str:
    """Format the lines as a traceback does."""
    lines = []
    for line in stack:
        lines.append(f'  File "{line.file}", line {line.number}, in {line.function}')
        if source := linecache.getline(line.file, line.number).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def run_queue_wait(thread: int) -> float:
    """Seconds for which a thread (by its native id) was ready to run but had no processor; 0 if that is unknown.

    Source: Linux, ``Documentation/scheduler/sched-stats.rst``.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
