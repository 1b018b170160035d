"""Partitions whose data cannot be read: a checksum is wrong, a codec is unknown, a batch is broken.

Such a partition is held at that offset. Its records that were read before still run, and other partitions are not
affected. The offset is fetched again at intervals: a replica with intact data may lead by then, or the bytes were
damaged in transit only. A batch is skipped only if :attr:`Options.skip_unreadable
<aioparallel.Options.skip_unreadable>` names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Final

from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.records.errors import FetchFailed, UnreadableBatch
from aioparallel.records.record import TopicPartition

__all__ = ["UnreadablePartitions", "read_past"]

logger = logging.getLogger(__name__)

_TRY_AGAIN: Final = 30.0
"""Seconds until the same offset is fetched again."""


class UnreadablePartitions:
    """Holds assignments at data that cannot be read, or moves them past it. ``skip``: batches to skip, each as topic,
    partition and base offset. ``on_change()`` is called when fetches must be planned again."""

    def __init__(
        self,
        client: Client,
        assigned: AssignedPartitions,
        skip: Collection[tuple[str, int, int]],
        on_change: Callable[[], None],
    ) -> None:
        self._client = client
        self._assigned = assigned
        self._skip = frozenset(skip)
        self._on_change = on_change
        self._timers: dict[Assignment, asyncio.TimerHandle] = {}
        self.skipped = 0
        """How many batches were skipped."""

    def found(self, error: FetchFailed, stamped: Assignment | None) -> None:
        """Hold or move the assignment of an error. ``stamped``: the partition's assignment when the fetch began."""
        assignment = self._assigned.assignments.get(error.partition)
        if (
            assignment is None
            or assignment is not stamped
            or assignment.state is not AssignmentState.OPEN
            or assignment.resetting
        ):
            return
        if assignment.waits or assignment.ledger.position > error.offset:
            return  # it is held already, or has moved past the offset of the error
        if isinstance(error, UnreadableBatch) and _is_named(error, self._skip) and error.next_offset is not None:
            self._skip_batch(assignment, error, error.next_offset)
        else:
            self._hold(assignment, error)
        self._on_change()

    def is_read(self, assignment: Assignment) -> None:
        """Note that records after the unreadable offset were fetched."""
        logger.warning(
            "%s: can be read again from offset %d on",
            assignment.partition,
            assignment.unreadable.offset if assignment.unreadable is not None else assignment.ledger.position,
            extra={"action": "readable_again", **_coordinates(assignment.partition)},
        )
        assignment.unreadable = None

    def close(self) -> None:
        """Cancel all further tries."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _skip_batch(self, assignment: Assignment, error: UnreadableBatch, next_offset: int) -> None:
        log_skipped(error)
        self.skipped += 1
        assignment.unreadable = None
        assignment.ledger.register([], min(next_offset, assignment.target))
        self._client.seek(assignment.partition, assignment.ledger.position)

    def _hold(self, assignment: Assignment, error: FetchFailed) -> None:
        is_news = assignment.unreadable is None or assignment.unreadable.offset != error.offset
        logger.log(
            logging.ERROR if is_news else logging.DEBUG,
            "%s. The partition is held there and tried again in %g s; the others continue",
            error,
            _TRY_AGAIN,
            extra={"action": "unreadable", **_coordinates(error.partition), "offset": error.offset},
        )
        assignment.unreadable, assignment.waits = error, True
        self._timers[assignment] = asyncio.get_running_loop().call_later(_TRY_AGAIN, self._try_again, assignment)

    def _try_again(self, assignment: Assignment) -> None:
        self._timers.pop(assignment, None)
        assignment.waits = False
        if assignment.state is AssignmentState.OPEN and not assignment.resetting:
            self._client.seek(assignment.partition, assignment.ledger.position)
            self._on_change()


async def read_past(
    client: Client, spans: Mapping[TopicPartition, Span | list[Span]], skip: Collection[tuple[str, int, int]]
) -> AsyncGenerator[Fetched, None]:
    """:meth:`Client.read <aioparallel.group.client.Client.read>`, past the batches that ``skip`` names."""
    left = {partition: [one] if isinstance(one, Span) else list(one) for partition, one in spans.items()}
    error: UnreadableBatch | None
    while True:
        error = None
        async with aclosing(client.read(spans)) as reads:
            try:
                async for fetched in reads:
                    left[fetched.partition] = _behind(left[fetched.partition], fetched.next_offset)
                    yield fetched
            except UnreadableBatch as found:
                if found.next_offset is None or not _is_named(found, skip) or found.partition not in left:
                    raise
                error = found
        if error is None or error.next_offset is None:
            return
        log_skipped(error)
        left[error.partition] = _behind(left[error.partition], error.next_offset)
        spans = {partition: list(some) for partition, some in left.items()}


def log_skipped(error: UnreadableBatch) -> None:
    """Log a skipped batch."""
    logger.warning(
        "%s: SKIPPED the batch at offset %d, offsets %d to %d, which cannot be read (%s), as skip_unreadable says",
        error.partition,
        error.batch,
        error.offset,
        (error.next_offset or 0) - 1,
        error.reason,
        extra={
            "action": "batch_skipped",
            **_coordinates(error.partition),
            "offset": error.offset,
            "next_offset": error.next_offset,
        },
    )


def _is_named(error: UnreadableBatch, skip: Collection[tuple[str, int, int]]) -> bool:
    return (error.partition.topic, error.partition.partition, error.batch) in skip


def _behind(spans: list[Span], offset: int) -> list[Span]:
    """Return the parts of the spans from ``offset`` on. The last span stays even if empty: its end is reported."""
    left = [Span(max(span.start, offset), span.end) for span in spans if span.end > offset]
    return left or [Span(spans[-1].end, spans[-1].end)]


def _coordinates(partition: TopicPartition) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition}
