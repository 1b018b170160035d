"""The sources of acquired records, and how the ends of records become acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from aioparallel.engine.sinks import DeadLetterSink, Done
from aioparallel.engine.sources import Source
from aioparallel.queues.share.acknowledging import Acknowledgements
from aioparallel.queues.share.locks import Lock, Stage
from aioparallel.records.errors import LockLost
from aioparallel.records.record import Record, TopicPartition

__all__ = ["NotedLetters", "ShareSource", "ShareSources", "lock_of", "stage_of"]


class ShareSource(Source):
    """Acquired records of one partition, each offset once. ``missed(lock)`` is called if a lock is found to have ended
    when its handler is about to be called: the event loop was blocked."""

    __slots__ = ("_acknowledgements", "_missed", "_time", "locks", "partition")

    def __init__(
        self, partition: TopicPartition, acknowledgements: Acknowledgements, missed: Callable[[Lock], None]
    ) -> None:
        super().__init__(partition)
        self._missed = missed
        self.partition = partition
        self.locks: dict[int, Lock] = {}
        """By offset: of the records that have not ended here, whether or not the lock is still held."""
        self._acknowledgements = acknowledgements
        self._time = asyncio.get_running_loop().time  # asking for the loop is a system call each time
        self.complete = self._ended
        self.complete_all = self._all_ended
        self.release = self._released
        self.gave_up = self._gave_up

    def begin(self, offset: int) -> None:
        """The handler is about to be called. Raises LockLost."""
        lock = self.locks.get(offset)
        if lock is not None and (lock.is_lost or lock.ends <= self._time()):
            if not lock.is_lost:
                self._missed(lock)
            raise LockLost

    # A stop dead-letters what it cuts off in its last delivery. That ends the record, and its lock is not here any more
    # if its handler has ignored the cancellation and ends after that.

    def _ended(self, offset: int) -> None:
        lock = self.locks.pop(offset, None)
        if lock is None:
            return
        if lock.is_refused:
            self._acknowledgements.reject(lock)
        else:
            self._acknowledgements.accept(lock)

    def _all_ended(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._ended(offset)

    def _released(self, offset: int) -> None:
        if (lock := self.locks.pop(offset, None)) is not None:
            self._acknowledgements.release(lock)

    def _gave_up(self, offset: int) -> None:
        if (lock := self.locks.get(offset)) is not None:
            lock.is_refused = not lock.is_letter


class ShareSources:
    """All sources of a member. A partition has several while a record that was lost runs here and is acquired again."""

    def __init__(self, new_source: Callable[[TopicPartition], ShareSource]) -> None:
        self._new_source = new_source
        self._sources: dict[TopicPartition, list[ShareSource]] = {}
        self.all: list[ShareSource] = []

    def locks_of(self, partition: TopicPartition, offsets: Collection[int]) -> list[Lock]:
        """Return the locks of earlier deliveries of these offsets that are not known to be lost."""
        return [
            lock
            for source in self._sources.get(partition, ())
            if not source.locks.keys().isdisjoint(offsets)
            for offset in offsets
            if (lock := source.locks.get(offset)) is not None and not lock.is_lost
        ]

    def source_for(self, partition: TopicPartition, offsets: Iterable[int]) -> ShareSource:
        """Return a source of the partition in which none of these offsets has a lock."""
        sources = self._sources.setdefault(partition, [])
        for source in sources:
            if source.locks.keys().isdisjoint(offsets):
                return source
        source = self._new_source(partition)
        sources.append(source)
        self.all.append(source)
        return source


def lock_of(record: Record[Any, Any]) -> Lock | None:
    """Return the lock of a record; None if it has ended here."""
    source = record._source
    assert isinstance(source, ShareSource)
    return source.locks.get(record.offset)


def stage_of(lock: Lock) -> Stage:
    """Return what becomes of the record of a lock now."""
    record = lock.record
    if record is None:
        return Stage.UNREADABLE
    source = record._source
    if record in source.in_flight:
        return Stage.RUNNING
    if record in source.parked:
        return Stage.PARKED
    return Stage.PRODUCING if record in source.producing else Stage.WAITING


class NotedLetters(DeadLetterSink):
    """Notes which records are dead-lettered: these are accepted, and skipped ones are rejected."""

    def __init__(self, sink: DeadLetterSink) -> None:
        self._sink = sink
        self._unwritten: set[Record[Any, Any]] = set()
        self._changed = asyncio.Event()

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for more, else what to await before asking again."""
        return self._sink.room()

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Write the record to the dead-letter topic."""
        if (lock := lock_of(record)) is not None:
            lock.is_letter = True
        self._sink.dispose(record, error, retry_topic, partial(self._ended, done))
        self._unwritten.add(record)

    def _ended(self, done: Done, record: Record[Any, Any], error: Exception | None) -> None:
        self._unwritten.discard(record)
        self._changed.set()
        done(record, error)

    async def last_written(self) -> None:
        """Wait until all dead letters of last deliveries are written: nobody would get these records."""
        while any(lock.is_last for record in self._unwritten if (lock := lock_of(record)) is not None):
            self._changed.clear()
            await self._changed.wait()
