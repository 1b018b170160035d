"""Logs and reports resources of the process that are exhausted, such as file descriptors. No record is to blame."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.errors import OutOfResources
from aioparallel.records.record import Record

__all__ = ["Shortages"]

logger = logging.getLogger(__name__)

# Seconds between two log lines.
_LOG_PAUSE: Final = 5.0
# Seconds without another failure after which a shortage is over.
_OVER: Final = 10.0


class Shortages:
    """The current or last shortage. ``fields``: added to each log line."""

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        self._fields = dict(fields or {})
        self._since = self._last = self._logged = -float("inf")
        self._what = ""

    def note(self, record: Record[Any, Any], error: OutOfResources) -> None:
        """Note that a record waits for a resource."""
        now = time.monotonic()
        if now - self._last > _OVER:
            self._since = now
        self._last, self._what = now, error.what
        if now - self._logged <= _LOG_PAUSE:
            return
        self._logged = now
        logger.warning(
            "%s waits, and others may: the process has run out of a resource that its handler needs: %s. It is tried "
            "again, and no attempt is counted",
            record.place,
            error.what,
            extra={"action": "out_of_resources", **self._fields, **coordinates(record)},
        )

    def problems(self) -> Sequence[Problem]:
        """The shortage as a health problem, if there is one now."""
        now = time.monotonic()
        if now - self._last > _OVER:
            return ()
        text = f"handlers have lacked resources for {now - self._since:.0f} s: {self._what}; their records wait"
        return (Problem(ProblemKind.OUT_OF_RESOURCES, text),)
