"""A cache of the committed records of one partition, for tests that poll all records again and again."""

from __future__ import annotations

from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory.log import PartitionLog

__all__ = ["CommittedRecords"]


class CommittedRecords:
    """The records of a partition for a ``read_committed`` consumer. Each is read once: records below the last stable
    offset are decided, and do not change unless the log is damaged."""

    def __init__(self, partition: TopicPartition, log: PartitionLog) -> None:
        self._partition = partition
        self._log = log
        self._edits = log.edits
        self._records: list[Record] = []
        self._next = log.start_offset

    def records(self) -> list[Record]:
        """All records, in order. The caller must not change the list."""
        log = self._log
        if self._edits != log.edits:
            self._edits, self._records, self._next = log.edits, [], log.start_offset
        found, self._next = log.read(self._next, log.end_offset, read_committed=True)
        self._records += [Record(*self._partition, s.offset, s.key, s.value, s.headers, s.timestamp) for s in found]
        return self._records
