"""What a reader of one partition sees, kept: whoever waits for records asks for all of them, a thousand times."""

from __future__ import annotations

from aioparallel.records import Record, TopicPartition
from aioparallel.testing.memory.log import PartitionLog

__all__ = ["CommittedRecords"]


class CommittedRecords:
    """The records of a partition for a ``read_committed`` consumer. Each is read once: what is below the last stable
    offset is decided, and stays until somebody damages the log."""

    def __init__(self, partition: TopicPartition, log: PartitionLog) -> None:
        self._partition = partition
        self._log = log
        self._edits = log.edits
        self._records: list[Record] = []
        self._next = log.start_offset

    def records(self) -> list[Record]:
        """All of them, in order. Not to be changed."""
        log = self._log
        if self._edits != log.edits:
            self._edits, self._records, self._next = log.edits, [], log.start_offset
        found, self._next = log.read(self._next, log.end_offset, read_committed=True)
        self._records += [Record(*self._partition, s.offset, s.key, s.value, s.headers, s.timestamp) for s in found]
        return self._records
