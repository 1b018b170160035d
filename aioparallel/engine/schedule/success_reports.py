"""Reports records whose handlers have suspended and succeeded: several of one source together.

A report for each record would cost more than all else that the engine does for it. So the records of a source that
succeed in one turn of the event loop are reported together, at most 16. The time of the first one's call is measured.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.records.record import Record

__all__ = ["SuccessReports"]

_MOST: Final = 16

Group = tuple[float, float, list[Record[Any, Any]]]
"""When the call of the first record began, its seconds, and the records."""


class SuccessReports:
    """Calls ``attempted`` and ``completed`` of the signals."""

    __slots__ = ("_groups", "_is_due", "_signals")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._groups: dict[Source, Group] = {}
        self._is_due = False

    def add(self, record: Record[Any, Any], began: float) -> None:
        """Report this record in this turn of the loop. Its outcome is counted already."""
        source = record._source
        group = self._groups.get(source)
        if group is None:
            self._groups[source] = began, perf_counter() - began, [record]
            if not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._flush_due)
            return
        records = group[2]
        records.append(record)
        if len(records) == _MOST:
            del self._groups[source]
            self._report(group)

    def flush(self) -> None:
        """Report now what was added."""
        groups = self._groups
        while groups:
            self._report(groups.pop(next(iter(groups))))  # what is called may ask for the counters, which flushes

    def _flush_due(self) -> None:
        self._is_due = False
        self.flush()

    def _report(self, group: Group) -> None:
        began, seconds, records = group
        attempted, completed = self._signals.attempted, self._signals.completed
        if attempted is not None:
            attempted(records, len(records), began, seconds, None)
        if completed is not None:
            completed(records, EndState.SUCCEEDED.value)
