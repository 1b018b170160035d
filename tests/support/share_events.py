"""What became of each delivery of a share group, in event logs that survive their processes.

An event is one of :mod:`aioparallel.testing.event_log` with a time. Its partition field has the action, the delivery
count, and the type or the result of an acknowledgement; its offset field has the partition and the offset.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aioparallel import Record
from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.group.share_client import Acknowledged, AcknowledgeEnded, AcknowledgeType, Acquired
from aioparallel.records.record import TopicPartition
from aioparallel.testing.event_log import OFFSET_MASK, PARTITION_MASK, PARTITION_SHIFT, EventLog, EventTail

__all__ = ["Action", "ShareEvent", "ShareLog", "ShareTail", "WatchedClient"]

_RESULTS: Final = tuple(Acknowledged)
_PARTITION: Final = 32
_OFFSET_MASK: Final = (1 << _PARTITION) - 1
_CUTS: Final = {"share_session_interrupted", "share_session_refused"}


class Action(enum.IntEnum):
    """What happened."""

    ACQUIRED = 1
    BEGAN = 2
    ENDED = 3
    FAILED = 4
    SENT = 5
    """An acknowledgement was given to the client."""
    ANSWERED = 6
    CUT = 7
    """A session with a leader was interrupted or refused: whatever was locked in it may be released."""
    LATE = 8
    """``on_late`` was called."""


class ShareEvent(NamedTuple):
    """``kind``: of an acknowledgement. ``result``: of an answered one. ``at``: CLOCK_MONOTONIC in seconds."""

    action: Action
    record: tuple[int, int]
    """Partition and offset."""
    number: int
    """The delivery, from 1."""
    kind: AcknowledgeType | None
    result: Acknowledged | None
    at: float


class ShareLog:
    """The log of one process."""

    def __init__(self, path: Path) -> None:
        self._log = EventLog(path, times=True)
        self._counts: dict[tuple[int, int], int] = {}

    def note(self, action: Action, partition: int, offset: int, count: int, kind: int = 0, result: int = 0) -> None:
        """Write an event."""
        self._log.began(action << 12 | count << 8 | kind << 4 | result, partition << _PARTITION | offset)

    def of(self, action: Action, record: Record[Any, Any]) -> None:
        """Write what its handler does."""
        self.note(action, record.partition, record.offset, record.delivery_count)

    def acquired(self, acquired: Collection[Acquired]) -> None:
        """Write what a fetch has brought."""
        for partition, records, counts, *_ in acquired:
            for record, count in zip(records, counts, strict=True):
                self._counts[partition.partition, record.offset] = count
                self.note(Action.ACQUIRED, partition.partition, record.offset, count)

    def watch(self) -> None:
        """Write when sessions with leaders are lost. The package logs it."""

        def filtered(line: logging.LogRecord) -> bool:
            if getattr(line, "action", "") in _CUTS:
                self.note(Action.CUT, 0, 0, 0)
            return True

        logging.getLogger("aioparallel.clients.aiokafka.share_sessions").addFilter(filtered)

    def count_of(self, partition: int, offset: int) -> int:
        """The latest delivery to this process."""
        return self._counts[partition, offset]


class WatchedClient(AiokafkaShareClient):
    """The package's client, which notes what it acquires and acknowledges."""

    def __init__(self, bootstrap_servers: str, group_id: str, log: ShareLog) -> None:
        super().__init__(bootstrap_servers, group_id)
        self._log = log

    async def fetch(self, most: int) -> Sequence[Acquired]:
        found = await super().fetch(most)
        self._log.acquired(found)
        return found

    def acknowledge(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded
    ) -> None:
        log, number = self._log, partition.partition
        count = log.count_of(number, offset)

        def answered(result: Acknowledged, until: float) -> None:
            log.note(Action.ANSWERED, number, offset, count, kind, _RESULTS.index(result))
            ended(result, until)

        log.note(Action.SENT, number, offset, count, kind)
        super().acknowledge(partition, offset, kind, answered)


class ShareTail:
    """Reads a log while it is written."""

    def __init__(self, path: Path) -> None:
        self._tail = EventTail(path)

    def new(self) -> list[ShareEvent]:
        """The events since the last call."""
        found = list[ShareEvent]()
        for word, at in self._tail.new_words():
            action, number, kind, result = _meaning(word >> PARTITION_SHIFT & PARTITION_MASK)
            where = word & OFFSET_MASK
            record = where >> _PARTITION, where & _OFFSET_MASK
            found.append(ShareEvent(action, record, number, kind, result, at / 1e9))
        return found


@functools.cache
def _meaning(what: int) -> tuple[Action, int, AcknowledgeType | None, Acknowledged | None]:
    action, kind = Action(what >> 12), what >> 4 & 15
    result = _RESULTS[what & 15] if action is Action.ANSWERED else None
    return action, what >> 8 & 15, AcknowledgeType(kind) if kind else None, result
