"""What was short lately, and who waits for it. No record is to blame."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioparallel.errors import OutOfResources
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.record_logging import coordinates
from aioparallel.records import Record

__all__ = ["Shortages"]

logger = logging.getLogger(__name__)

# Seconds from one line to the next; and without another failure, after which it is over.
_LINES: Final = 5.0
_OVER: Final = 10.0


class Shortages:
    """What was short lately. ``fields``: of each line."""

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        self._fields = dict(fields or {})
        self._since = self._last = self._told = -float("inf")
        self._what = ""

    def note(self, record: Record[Any, Any], error: OutOfResources) -> None:
        """A record waits for it."""
        now = time.monotonic()
        if now - self._last > _OVER:
            self._since = now
        self._last, self._what = now, error.what
        if now - self._told <= _LINES:
            return
        self._told = now
        logger.warning(
            "%s waits, and others may: the process has no more of what its handler needs: %s. It is tried again, and "
            "no attempt is counted",
            record.place,
            error.what,
            extra={"action": "out_of_resources", **self._fields, **coordinates(record)},
        )

    def problems(self) -> Sequence[Problem]:
        """What somebody should look at."""
        now = time.monotonic()
        if now - self._last > _OVER:
            return ()
        told = f"handlers lack what they need, for {now - self._since:.0f} s: {self._what}; their records wait"
        return (Problem(ProblemKind.OUT_OF_RESOURCES, told),)
