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
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.delivery.producer import Producer, SentOutput
from aioparallel.delivery.shrinking import CutLetters, SentLetter, smaller
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

_GAP: Final = 500
"""A gap of up to this many records between two wanted ones is read, and not skipped by a seek."""
_READERS: Final = 8
"""Concurrent readers of all partitions: each has its own connections."""
_STALLED: Final = 10.0
"""Seconds without progress after which a read ends: the other due records of the partition wait for it."""
_BYTES: Final = 32 * 1024 * 1024
"""Bytes that one redelivery reads: the rest waits for the next one."""
_NOT_ENDED: Final = "nobody has said in time that it was handled"
"""Stored in dead letters."""
_LETTERS: Final = 10_000
"""Unacknowledged dead letters, at most."""
_REFUSED: Final = 90.0
"""Seconds for which a refusal is reported: each record is tried once a minute."""
_REPORTED: Final = 10
"""Refusals that are reported one by one."""


class NotSent(NamedTuple):
    """Records that were not redelivered."""

    soon: Sequence[int]
    """Offsets to try again soon."""
    unread: Collection[int]
    """Offsets that could not be read."""


class _Outstanding(set[Any]):
    """Unacknowledged records. ``none`` is set when there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.none = asyncio.Event()
        self.none.set()

    def begin(self, key: object) -> None:
        """Add one."""
        self.add(key)
        self.none.clear()

    def end(self, key: object) -> None:
        """Remove one."""
        self.discard(key)
        if not self:
            self.none.set()


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
        self._away = _Outstanding()  # partition and offset of unacknowledged dead letters
        self.none_away = self._away.none

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
        sending, failed, found = _Outstanding(), dict[int, ProduceFailed](), set[int]()
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
                        sending.begin(record.offset)
                        copied = partial(self._copied, record, settled, sending, failed)
                        self._producer.send_one(SentOutput(self._copy(record), copied))
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
            await sending.none.wait()  # the producer's delivery timeout limits this
        for offset in sorted(wanted.difference(found, later, unread)):
            if is_wanted(offset):
                settled(offset)
                self._is_gone(place, offset)
        return NotSent([*later, *self._not_sent(place, failed)], unread)

    def _copied(
        self,
        record: Record[Any, Any],
        settled: Callable[[int], None],
        sending: _Outstanding,
        failed: dict[int, ProduceFailed],
        result: Produced | ProduceFailed,
    ) -> None:
        """The copy is stored in the queue, or has failed."""
        if not isinstance(result, ProduceFailed):
            self.redelivered += 1
            self._is_settled(record, settled)
        elif result.too_large and self._too_large != "hold":
            self._dead_letter(record, settled, f"the queue does not take it again: {result.reason}")
        else:
            failed[record.offset] = result
        sending.end(record.offset)

    def _is_settled(self, record: Record[Any, Any], settled: Callable[[int], None]) -> None:
        """The record is stored elsewhere, and needs only its end marker."""
        self._refusals.pop((record.partition, record.offset), None)
        settled(record.offset)
        self.ends.write(record.partition, record.offset)

    async def _read(self, place: TopicPartition, offsets: Sequence[int]) -> AsyncGenerator[Record[Any, Any], None]:
        """Yield these records, and those in small gaps between them."""
        if not offsets:
            return
        reads = read_past(self._client, {place: spans_of(offsets)}, self._skip)
        async with self._readers, aclosing(reads):
            while (fetched := await _next(reads)) is not None:
                for record in fetched.records:
                    yield record

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
            extra={"action": "redelivery_refused", **_fields(place, offset)},
        )

    def _dead_letter(self, record: Record[Any, Any], settled: Callable[[int], None], why: str) -> None:
        """Dead-letter a record. If that fails, its marker stays open, and it is due again."""
        place, offset = record.topic_partition, record.offset
        self._away.begin((place.partition, offset))
        letter = self._letter(record, why)

        def ended(result: Produced | ProduceFailed) -> None:
            nonlocal letter
            failure = result if isinstance(result, ProduceFailed) else None
            if failure is not None and failure.too_large and (less := smaller(letter, self._too_large)) is not None:
                letter = less
                self._producer.send_one(SentOutput(letter, ended))
                return
            self._away.end((place.partition, offset))
            if failure is not None:
                self._refused(place, offset, failure)
                return
            self.cut.note(record, letter)
            self.dead_lettered += 1
            self._is_settled(record, settled)
            self._log_dead_letters(place)

        self._producer.send_one(SentOutput(letter, ended))

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
            extra={"action": "record_gone", **_fields(place, offset)},
        )
        self.ends.write(place.partition, offset)


def _fields(place: TopicPartition, offset: int) -> dict[str, object]:
    return {"topic": place.topic, "partition": place.partition, "offset": offset}


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
