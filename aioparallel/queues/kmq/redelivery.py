"""Delivering records again: each is read from where it stands, and sent to the end of its partition, or put away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.errors import ProduceFailed
from aioparallel.group.client import Client, Span
from aioparallel.queues.kmq.end_markers import EndMarkers
from aioparallel.queues.kmq.markers import redeliveries, with_count
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records import Failure, Origin, Outgoing, Produced, Record, TopicPartition

__all__ = ["Redeliverer", "spans_of"]

logger = logging.getLogger(__name__)

# Records that are read for nothing between two that are wanted, rather than to read anew.
_GAP: Final = 500


class _Sending:
    """Copies on their way. ``done`` is set when none is."""

    def __init__(self) -> None:
        self.left = 0
        self.failed: list[int] = []
        self.failure: ProduceFailed | None = None
        self.done = asyncio.Event()
        self.done.set()


class _Copy(PendingOutput):
    __slots__ = ("_offset", "_placed", "_sending")

    def __init__(
        self, output: Outgoing, offset: int, sending: _Sending, placed: Callable[[Outgoing, int], None]
    ) -> None:
        super().__init__(output)
        self._offset = offset
        self._sending = sending
        self._placed = placed
        sending.left += 1
        sending.done.clear()

    def placed(self, place: Produced) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._placed(self.output, self._offset)
        self._answered()

    def failed(self, failure: ProduceFailed) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._sending.failed.append(self._offset)
        self._sending.failure = failure
        self._answered()

    def _answered(self) -> None:
        self._sending.left -= 1
        if not self._sending.left:
            self._sending.done.set()


class Redeliverer:
    """``most``: redeliveries of one record, after which it is put into the dead-letter topic."""

    def __init__(self, client: Client, producer: Producer, topics: QueueTopics, group_id: str, most: int) -> None:
        self._client = client
        self._producer = producer
        self._topics = topics
        self._group_id = group_id
        self._most = most
        self.ends = EndMarkers(producer, topics.markers)
        self.redelivered = 0
        self.dead_lettered = 0
        self.gone = 0
        """Records that their topic does not hold any more."""

    async def redeliver(
        self,
        partition: int,
        offsets: Sequence[int],
        is_wanted: Callable[[int], bool],
        settled: Callable[[int], None],
    ) -> Sequence[int]:
        """Send these again, those that are still wanted when they were read, and write their end markers once the
        brokers have acknowledged the copies. Returns those that are to be tried once more. ``settled(offset)`` hears of
        each that needs nothing but its end marker any more.

        Raises ClientError, or TimeoutError, where they cannot be read: then nobody knows of which this is true.
        """
        sending, found, away = _Sending(), set[int](), 0
        wanted = set(offsets)

        def placed(copy: Outgoing, offset: int) -> None:
            nonlocal away
            if copy.topic == self._topics.dead_letter:
                away += 1
                self.dead_lettered += 1
            else:
                self.redelivered += 1
            settled(offset)
            self.ends.write(partition, offset)

        place = TopicPartition(self._topics.queue, partition)
        try:
            for span in spans_of(sorted(offsets)):
                async with aclosing(self._client.read({place: span})) as reading:
                    async for fetched in reading:
                        for record in fetched.records:
                            if record.offset in wanted and record.offset not in found:
                                found.add(record.offset)
                                if is_wanted(record.offset):
                                    copy = _Copy(self._copy(record), record.offset, sending, placed)
                                    self._producer.send_one(copy)
        finally:
            await sending.done.wait()  # the producer gives each up in time
        if away:
            logger.warning(
                "%d records of %s have become dead letters: delivered %d times, and nobody said that they were handled",
                away,
                place,
                self._most + 1,
                extra={"action": "undelivered", "topic": place.topic, "partition": place.partition},
            )
        for offset in sorted(wanted - found):
            if is_wanted(offset):
                settled(offset)
                self._is_gone(place, offset)
        if sending.failure is not None:
            logger.warning(
                "%d records of %s could not be delivered again (%s); it is tried anew",
                len(sending.failed),
                place,
                sending.failure,
                extra={"action": "redelivery_failed"},
            )
        return sending.failed

    def _copy(self, record: Record[Any, Any]) -> Outgoing:
        count = redeliveries(record)
        if count < self._most:
            headers = with_count(record.headers, count + 1)
            return Outgoing(record.topic, record.raw_value, record.raw_key, headers, partition=record.partition)
        said = f"delivered {count + 1} times, and nobody has said that it was handled"
        failure = Failure(time.time(), "aioparallel.queues.kmq.NotEnded", said)
        origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
        letter = Letter(origin, self._group_id, count + 1, failure, failure, "")
        letter_headers = write_letter(tuple(with_count(record.headers, None)), letter)
        return Outgoing(self._topics.dead_letter, record.raw_value, record.raw_key, letter_headers)

    def _is_gone(self, place: TopicPartition, offset: int) -> None:
        """Another must not be sent in its place."""
        self.gone += 1
        logger.error(
            "%s offset %d was not handled in time and cannot be delivered again: the topic does not hold it any more "
            "(retention, compaction, or an aborted transaction)",
            place,
            offset,
            extra={"action": "record_gone", "topic": place.topic, "partition": place.partition, "offset": offset},
        )
        self.ends.write(place.partition, offset)


def spans_of(offsets: Sequence[int]) -> Iterator[Span]:
    """What is to be read for these, which ascend."""
    if not offsets:
        return
    start = last = offsets[0]
    for offset in offsets[1:]:
        if offset - last > _GAP:
            yield Span(start, last + 1)
            start = offset
        last = offset
    yield Span(start, last + 1)
