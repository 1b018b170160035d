"""Redelivers records: reads each one again, and sends it to the end of its partition, or dead-letters it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from aioparallel.config.policies import TooLargeLetters
from aioparallel.delivery.cut_letters import CutLetters
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.delivery.shrinking import SentLetter, is_cut, smaller
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.group.unreadable import read_past
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.queues.kmq.end_markers import EndMarkers
from aioparallel.queues.kmq.markers import redeliveries, with_count
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.errors import ClientError, ProduceFailed
from aioparallel.records.record import Failure, Origin, Outgoing, Produced, Record, TopicPartition

__all__ = ["NotSent", "Redeliverer", "spans_of"]

logger = logging.getLogger(__name__)

# A gap between two wanted records is read, and not skipped by a seek, up to this many records.
_GAP: Final = 500
# Concurrent readers of all partitions: each has its own connections.
_READERS: Final = 8
# Seconds without progress after which a read ends: the other due records of the partition wait for it.
_STALLED: Final = 10.0
# Bytes that one redelivery reads: the rest waits for the next one.
_BYTES: Final = 32 * 1024 * 1024
# This text is stored in dead letters.
_NOT_ENDED: Final = "nobody has said in time that it was handled"
# Unacknowledged dead letters, at most.
_LETTERS: Final = 10_000
# Seconds for which a refusal is reported: each record is tried once a minute.
_REFUSED: Final = 90.0
# Refusals that are reported one by one.
_REPORTED: Final = 10


class NotSent(NamedTuple):
    """Records that were not redelivered."""

    soon: Sequence[int]
    """Offsets to try again soon."""
    unread: Collection[int]
    """Offsets that could not be read."""


class _Sending:
    """The unacknowledged copies of one redelivery. ``done`` is set when there is none."""

    def __init__(self) -> None:
        self.left = 0
        self.failed: dict[int, ProduceFailed] = {}  # by offset
        self.done = asyncio.Event()
        self.done.set()

    def begin(self) -> None:
        """Count a copy."""
        self.left += 1
        self.done.clear()

    def ended(self, offset: int, failure: ProduceFailed | None) -> None:
        """Count an acknowledged or failed copy."""
        if failure is not None:
            self.failed[offset] = failure
        self.left -= 1
        if not self.left:
            self.done.set()


class _Copy(PendingOutput):
    __slots__ = ("_ended", "_offset")

    def __init__(self, output: Outgoing, offset: int, ended: Callable[[int, ProduceFailed | None], None]) -> None:
        super().__init__(output)
        self._offset = offset
        self._ended = ended

    def placed(self, place: Produced) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._ended(self._offset, None)

    def failed(self, failure: ProduceFailed) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        self._ended(self._offset, failure)


class Redeliverer:
    """Redelivers the records of one queue.

    ``most``: redeliveries of one record, after which it is dead-lettered. ``too_large``: what happens to a record that
    is too large for the dead-letter topic. Unless it is ``"hold"``, a record that the queue refuses, because the count
    of its redeliveries makes it too large, is dead-lettered at once. ``skip``: unreadable batches that are skipped.
    """

    def __init__(
        self,
        client: Client,
        producer: Producer,
        topics: QueueTopics,
        group_id: str,
        most: int,
        too_large: TooLargeLetters = "drop_value",
        skip: Collection[tuple[str, int, int]] = (),
    ) -> None:
        self._client = client
        self._skip = skip
        self._producer = producer
        self._topics = topics
        self._group_id = group_id
        self._most = most
        self._too_large: TooLargeLetters = too_large
        self.cut = CutLetters()
        """Dead letters that lack a part of their record."""
        self._readers = asyncio.Semaphore(_READERS)
        self._refusals: dict[tuple[int, int], tuple[float, str]] = {}  # when, and why
        self.ends = EndMarkers(producer, topics.markers)
        self.redelivered = 0
        self.dead_lettered = 0
        self.gone = 0
        """Records that the queue no longer holds."""
        self._away: set[tuple[int, int]] = set()  # partition and offset of unacknowledged dead letters
        self.none_away = asyncio.Event()
        self.none_away.set()

    async def redeliver(
        self,
        partition: int,
        offsets: Sequence[int],
        is_wanted: Callable[[int], bool],
        settled: Callable[[int], None],
    ) -> NotSent:
        """Redeliver these records if they are still wanted after the read.

        End markers follow the acknowledgements of the copies. ``settled(offset)`` is called for each record that needs
        only its end marker. This waits for copies, and not for dead letters, whose partitions may have no leader.
        """
        sending, found = _Sending(), set[int]()
        place = TopicPartition(self._topics.queue, partition)
        full = len(self._away) >= _LETTERS
        wanted = {offset for offset in offsets if (partition, offset) not in self._away}

        later: list[int] = []
        unread: Collection[int] = ()
        left = _BYTES
        try:
            async with aclosing(self._read(place, sorted(wanted))) as records:
                async for record in records:
                    if record.offset not in wanted or record.offset in found:
                        continue
                    found.add(record.offset)
                    if not is_wanted(record.offset):
                        continue
                    left -= record._size
                    if redeliveries(record) < self._most:
                        sending.begin()
                        copied = partial(self._copied, record, settled, sending)
                        self._producer.send_one(_Copy(self._copy(record), record.offset, copied))
                    elif full:
                        later.append(record.offset)
                    else:
                        self._dead_letter(record, settled, _NOT_ENDED)
                    if left <= 0:
                        later += wanted - found
                        break
        except (ClientError, TimeoutError) as error:
            unread = wanted - found
            logger.warning(
                "%d records of %s that are due for redelivery could not be read (%s); the read is repeated",
                len(unread),
                place,
                str(error) or f"no data for {_STALLED:g} s",
                extra={"action": "redelivery_unread"},
            )
        finally:
            await sending.done.wait()  # the producer's delivery timeout limits this
        for offset in sorted(wanted.difference(found, later, unread)):
            if is_wanted(offset):
                settled(offset)
                self._is_gone(place, offset)
        return NotSent([*later, *self._not_sent(place, sending.failed)], unread)

    def _copied(
        self,
        record: Record[Any, Any],
        settled: Callable[[int], None],
        sending: _Sending,
        offset: int,
        failure: ProduceFailed | None,
    ) -> None:
        """The copy is stored in the queue, or has failed."""
        if failure is None:
            self._refusals.pop((record.partition, offset), None)
            self.redelivered += 1
            settled(offset)
            self.ends.write(record.partition, offset)
        elif failure.too_large and self._too_large != "hold":
            self._dead_letter(record, settled, f"the queue does not take it again: {failure.reason}")
            failure = None
        sending.ended(offset, failure)

    async def _read(self, place: TopicPartition, offsets: Sequence[int]) -> AsyncGenerator[Record[Any, Any], None]:
        """Yield these records, and those in small gaps between them."""
        if not offsets:
            return
        async with self._readers, aclosing(self._reading(place, offsets)) as reading:
            while (fetched := await _next(reading)) is not None:
                for record in fetched.records:
                    yield record

    def _reading(self, place: TopicPartition, offsets: Sequence[int]) -> AsyncGenerator[Fetched, None]:
        return read_past(self._client, {place: spans_of(offsets)}, self._skip)

    def _not_sent(self, place: TopicPartition, failed: Mapping[int, ProduceFailed]) -> list[int]:
        """Returns the offsets to try again soon. Refused records are not among them."""
        passing = [offset for offset, failure in failed.items() if failure.passing]
        if passing:
            logger.warning(
                "%d records of %s could not be redelivered (%s); the redelivery is repeated",
                len(passing),
                place,
                failed[passing[0]],
                extra={"action": "redelivery_failed"},
            )
        for offset, failure in failed.items():
            if not failure.passing:
                self._refused(place, offset, failure)
        return passing

    def problems(self) -> list[Problem]:
        """Returns the records that brokers refuse as copies or as dead letters."""
        since = asyncio.get_running_loop().time() - _REFUSED
        self._refusals = {where: refusal for where, refusal in self._refusals.items() if refusal[0] > since}
        texts = [
            f"{self._topics.queue}-{partition} offset {offset} cannot be redelivered: {why}"
            for (partition, offset), (_, why) in self._refusals.items()
        ]
        more = [f"and {len(texts) - _REPORTED} more records"] if len(texts) > _REPORTED else []
        return [Problem(ProblemKind.DEAD_LETTER_FAILED, one) for one in (*texts[:_REPORTED], *more)]

    def _refused(self, place: TopicPartition, offset: int, failure: ProduceFailed) -> None:
        self._refusals[place.partition, offset] = asyncio.get_running_loop().time(), str(failure)
        logger.error(
            "%s offset %d cannot be redelivered: %s; its marker stays open, and it is tried once a minute",
            place,
            offset,
            failure,
            extra={
                "action": "redelivery_refused",
                "topic": place.topic,
                "partition": place.partition,
                "offset": offset,
            },
        )

    def _dead_letter(self, record: Record[Any, Any], settled: Callable[[int], None], why: str) -> None:
        """Dead-letter a record. If that fails, its marker stays open, and it is due again."""
        place, offset = record.topic_partition, record.offset
        self._away.add((place.partition, offset))
        self.none_away.clear()

        letter = self._letter(record, why)

        def ended(offset: int, failure: ProduceFailed | None) -> None:
            nonlocal letter
            if failure is not None and failure.too_large and (less := smaller(letter, self._too_large)) is not None:
                letter = less
                self._producer.send_one(_Copy(letter, offset, ended))
                return
            if failure is None and is_cut(letter):
                self.cut.note(record, letter)
            self._away.discard((place.partition, offset))
            if not self._away:
                self.none_away.set()
            if failure is not None:
                self._refused(place, offset, failure)
                return
            self._refusals.pop((place.partition, offset), None)
            self.dead_lettered += 1
            settled(offset)
            self.ends.write(place.partition, offset)
            self._log_dead_letters(place)

        self._producer.send_one(_Copy(letter, offset, ended))

    def _log_dead_letters(self, place: TopicPartition) -> None:
        if self.dead_lettered in (1, 10) or self.dead_lettered % 100 == 0:
            logger.warning(
                "%d records were dead-lettered, the last one of %s: delivered %d times at most, and no end marker was "
                "written in time",
                self.dead_lettered,
                place,
                self._most + 1,
                extra={"action": "undelivered", "topic": place.topic, "partition": place.partition},
            )

    def _copy(self, record: Record[Any, Any]) -> Outgoing:
        headers = with_count(record.headers, redeliveries(record) + 1)
        return Outgoing(record.topic, record.raw_value, record.raw_key, headers, partition=record.partition)

    def _letter(self, record: Record[Any, Any], why: str) -> SentLetter:
        count = redeliveries(record)
        failure = Failure(time.time(), "aioparallel.queues.kmq.NotEnded", f"delivered {count + 1} times, and {why}")
        origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
        letter = Letter(origin, self._group_id, count + 1, failure, failure, "")
        letter_headers = write_letter(tuple(with_count(record.headers, None)), letter)
        return SentLetter(self._topics.dead_letter, record.raw_value, record.raw_key, letter_headers)

    def _is_gone(self, place: TopicPartition, offset: int) -> None:
        """Report a record that the queue no longer holds, and close its marker."""
        self.gone += 1
        logger.error(
            "%s offset %d was not handled in time and cannot be redelivered: the topic no longer holds it (retention, "
            "compaction, or an aborted transaction)",
            place,
            offset,
            extra={"action": "record_gone", "topic": place.topic, "partition": place.partition, "offset": offset},
        )
        self.ends.write(place.partition, offset)


async def _next(reading: AsyncGenerator[Fetched, None]) -> Fetched | None:
    async with asyncio.timeout(_STALLED):
        return await anext(reading, None)


def spans_of(offsets: Sequence[int]) -> list[Span]:
    """Returns the ranges to read for ascending offsets."""
    spans: list[Span] = []
    for offset in offsets:
        if spans and offset - spans[-1].end < _GAP:
            spans[-1] = Span(spans[-1].start, offset + 1)
        else:
            spans.append(Span(offset, offset + 1))
    return spans
