"""Reports records whose handlers have suspended and succeeded: several of one source together.

A report for each record would cost more than all else that the engine does for it. So the records of a source that
succeed in one turn of the event loop, after about the same time, are reported together, at most 16, with their mean
time.
"""

from __future__ import annotations

import asyncio
from math import frexp
from time import perf_counter
from typing import Any, Final

from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.records.record import Record

__all__ = ["SuccessReports"]

_MOST: Final = 16


class _Group:
    """Records of one source. The longest of their calls took less than twice as long as the shortest."""

    __slots__ = ("began", "records", "seconds")

    def __init__(self, began: float) -> None:
        self.began = began
        """When the call of the first record began."""
        self.seconds = 0.0
        """Of all calls."""
        self.records: list[Record[Any, Any]] = []


class SuccessReports:
    """Calls ``attempted`` and ``completed`` of the signals."""

    __slots__ = ("_groups", "_is_due", "_signals")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._groups: dict[tuple[Source, int], _Group] = {}
        """By the source and the binary exponent of the seconds."""
        self._is_due = False

    def add(self, record: Record[Any, Any], began: float) -> None:
        """Report this record in this turn of the loop. Its outcome is counted already."""
        seconds = perf_counter() - began
        key = record._source, frexp(seconds)[1]
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(began)
            if not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._flush_due)
        group.seconds += seconds
        group.records.append(record)
        if len(group.records) == _MOST:
            del self._groups[key]
            self._report(group)

    def flush(self) -> None:
        """Report now what was added."""
        groups = self._groups
        while groups:
            self._report(groups.pop(next(iter(groups))))  # what is called may ask for the counters, which flushes

    def _flush_due(self) -> None:
        self._is_due = False
        self.flush()

    def _report(self, group: _Group) -> None:
        records = group.records
        attempted, completed = self._signals.attempted, self._signals.completed
        if attempted is not None:
            attempted(records, len(records), group.began, group.seconds / len(records), None)
        if completed is not None:
            completed(records, EndState.SUCCEEDED.value)
