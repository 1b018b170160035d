"""What the engine reports to its owner, who sets these functions once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aioparallel.records.record import Record

__all__ = ["Attempted", "Completed", "Failed", "Signals"]

Attempted = Callable[[Sequence[Record[Any, Any]], int, float, float, BaseException | None], None]
"""``attempted(records, calls, began, seconds, error)``: attempts have ended, in so many calls of the handler. See
``Extension.attempts_ended``."""
Completed = Callable[[Sequence[Record[Any, Any]], str], None]
"""``completed(records, outcome)``: records have ended."""
Failed = Callable[[Record[Any, Any], BaseException, str, float | None], None]
"""``failed(record, error, follows, delay)``: an attempt has failed or was cancelled, and what follows is decided. See
``Extension.attempt_failed``."""


def _nothing() -> None:
    pass


def _raise(error: BaseException) -> None:
    raise error


@dataclass(slots=True, eq=False)
class Signals:
    """Functions that the engine calls in the middle of its work: they set a flag or wake a task, and return at once.

    ``taken``: ``Counters.taken_left`` has reached 0, so the fetcher may read more. ``succeeded``:
    ``Counters.succeeded_left`` has reached 0, so a commit is due. ``idle``: a worker found no ready record, or the last
    output was acknowledged, so the run may be over. ``fatal(error)``: end the run with this error. ``attempted``,
    ``completed`` and ``failed``: for measurements; None: nobody measures.
    """

    taken: Callable[[], None] = _nothing
    succeeded: Callable[[], None] = _nothing
    idle: Callable[[], None] = _nothing
    fatal: Callable[[BaseException], None] = _raise
    attempted: Attempted | None = None
    completed: Completed | None = None
    failed: Failed | None = None
