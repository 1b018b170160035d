"""The second pass of replay: sends letters back and settles each once its output is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from aioparallel.cli.console import counted
from aioparallel.cli.dlq.marks import Marks, MarksRefused, too_large
from aioparallel.delivery.first_places import replayed_origin
from aioparallel.delivery.letters import (
    REPLAYED,
    REPLAYED_FOR,
    REPLAYED_ORIGIN,
    Letter,
    original_headers,
    read_letter,
)
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Fetched
from aioparallel.records.errors import ClientError, ProduceFailed
from aioparallel.records.record import Headers, Outgoing, Produced, Record, TopicPartition
from aioparallel.records.source_headers import coordinates_of

__all__ = ["Destination", "Replay", "Replayed"]

GRACE: Final = 5.0
"""Seconds that an interrupted replay waits for outputs in flight, and again for the commit of their marks."""
PORTION: Final = 16 * 1024 * 1024
"""Bytes of missing parts of letters that are read before they are sent."""
_UNKNOWN_SIZE: Final = 256 * 1024
"""Bytes that are assumed for a record of which a broker's letter does not say the size."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to send letters. ``topic``: None for the original one. ``same_partition``: to the original partition,
    otherwise by key. ``exists``: the partitions that exist."""

    topic: str | None
    same_partition: bool
    exists: Collection[TopicPartition]

    def outgoing(self, record: Record) -> Outgoing | str:
        """The original record; or why it cannot be sent."""
        letter = read_letter(record)
        if letter is None:
            return "no letter of ours"
        topic = self.topic or letter.origin.topic
        number = letter.origin.partition if self.same_partition else None
        if TopicPartition(topic, 0) not in self.exists:
            return f"topic {topic} does not exist; --to TOPIC sends to another"
        if number is not None and TopicPartition(topic, number) not in self.exists:
            return f"{topic} has no partition {number}; leave --same-partition out and the key decides"
        return Outgoing(topic, record.value, record.key, _headers(record, letter), number)


@dataclass(slots=True)
class Replayed:
    """The result. ``failed``: reasons and their counts. ``without_origin``: replayed letters that were too large for
    their topic with the header of their original place. ``full``: partitions at which it stopped as more marks would
    not fit, with the reason and the number of letters left alone."""

    replayed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    without_origin: int = 0
    full: dict[int, tuple[str, int]] = field(default_factory=dict)


def _headers(record: Record, letter: Letter) -> Headers:
    """The original headers, and the original place, by which services recognise the record. With source headers it
    would be taken for a copy of a handled record; two more headers say that it is not, for the group that failed."""
    ours = (REPLAYED, REPLAYED_FOR, REPLAYED_ORIGIN)
    headers = tuple(one for one in original_headers(record.headers) if one[0] not in ours)
    marks: Headers = (replayed_origin(record, letter),)
    if coordinates_of(headers) is not None:
        marks = ((REPLAYED, record.place.encode()), (REPLAYED_FOR, letter.group.encode()), *marks)
    return (*headers, *marks)


def _says_origin(outgoing: Outgoing) -> bool:
    return any(name == REPLAYED_ORIGIN for name, _ in outgoing.headers)


def _without_origin(outgoing: Outgoing) -> Outgoing:
    return replace(outgoing, headers=tuple(one for one in outgoing.headers if one[0] != REPLAYED_ORIGIN))


def _portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Parts of ``records`` for which reading their sources takes limited memory."""
    portion: list[Record] = []
    size = 0
    for record in records:
        letter = read_letter(record)
        if letter is not None and (left_out := letter.left_out) is not None:
            sizes = (left_out.value, left_out.key, left_out.headers)
            size += _UNKNOWN_SIZE if left_out.checksum is None else sum(part or 0 for part in sizes)
        portion.append(record)
        if size >= PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class Replay:
    """Sends selected letters. ``marks``: None settles nothing. ``progress``: called with the number of letters done,
    whether they succeeded or not. ``ack_timeout``: seconds for the acknowledgements of one portion, longer than the
    producer's timeout. ``whole``: completes a letter that lacks a part of its record, or returns why it cannot.

    A letter is settled when its output is acknowledged, and marks are committed after each ``Fetched``. If the process
    is killed in between, at most the letters of one ``Fetched`` were replayed without being marked.
    """

    def __init__(
        self,
        producer: Producer,
        marks: Marks | None,
        destination: Destination,
        ack_timeout: float = 75.0,
        *,
        whole: Callable[[Record], Awaitable[Record | str]],
    ) -> None:
        self._producer = producer
        self._marks = marks
        self._destination = destination
        self._ack_timeout = ack_timeout
        self._whole = whole
        self._trouble: ProduceFailed | None = None
        self.progress: Callable[[int], None] = lambda _more: None
        self.result = Replayed()

    async def run(self, reads: AsyncIterator[Fetched], chosen: Mapping[int, set[int]]) -> None:
        """Send the letters at these offsets, by partition, in the order in which they are read.

        Raises MarksRefused and ClientError. If it is cancelled or fails, it waits a few seconds for outputs in flight
        and commits marks of acknowledged ones; ``result`` counts them.
        """
        found: Counter[int] = Counter()
        try:
            async for (_, number), records, _, *_ in reads:
                wanted = [record for record in records if record.offset in chosen.get(number, ())]
                found[number] += len(wanted)
                for portion in _portions(wanted):
                    await self._send_and_mark(number, portion)
        except BaseException:
            await self._end_early()
            raise
        if gone := sum(len(offsets) - found[number] for number, offsets in chosen.items()):
            self._failed("no longer in the topic: deleted since it was chosen", gone)

    async def _send_and_mark(self, partition: int, records: Sequence[Record]) -> None:
        outputs: list[tuple[int, Outgoing]] = []
        for record in records:
            whole = await self._whole(record)
            if isinstance(whole, str):
                self._failed(f"a part of it is not in the letter, and {whole}")
                continue
            outgoing = self._destination.outgoing(whole)
            if isinstance(outgoing, str):
                self._failed(outgoing)
            else:
                outputs.append((record.offset, outgoing))
        if not outputs or not self._fits(partition, {offset for offset, _ in outputs}):
            return
        if self._marks is not None:
            await self._marks.confirm(partition)
        await self._send(partition, outputs)
        await self._mark(partition)
        if self._trouble is not None:
            # A fault of the cluster, not of the letter: each further portion would wait for the same fault.
            raise ClientError(f"stopped, as the cluster does not accept letters now: {self._trouble}")

    async def _mark(self, partition: int) -> None:
        if self._marks is None or not self._marks[partition].unsaved:
            return
        if self._marks[partition].commit_with() is None:
            # All would have fitted, but some have failed, which leaves gaps. The earlier commit stays.
            self.result.full[partition] = too_large(self._marks[partition].partition), 0
        else:
            await self._marks.save([partition])

    def _fits(self, partition: int, offsets: set[int]) -> bool:
        """Whether all of these can be marked. The plan has checked that, but letters that failed leave gaps that the
        plan did not include."""
        if self._marks is None:
            return True
        if partition not in self.result.full and self._marks[partition].commit_with(offsets) is not None:
            return True
        _, before = self.result.full.get(partition, ("", 0))
        self.result.full[partition] = too_large(self._marks[partition].partition), before + len(offsets)
        self.progress(len(offsets))
        return False

    async def _send(self, partition: int, outputs: Sequence[tuple[int, Outgoing]]) -> None:
        """Send all at once and wait until each is acknowledged or refused."""
        ended = asyncio.get_running_loop().create_future()
        left = len(outputs)

        def delivered(offset: int, outgoing: Outgoing, outcome: Sequence[Produced] | ProduceFailed) -> None:
            nonlocal left
            if isinstance(outcome, ProduceFailed) and outcome.too_large and _says_origin(outgoing):
                # Without the header of its original place it may fit.
                less = _without_origin(outgoing)
                self._producer.send([less], partial(delivered, offset, less))
                return
            left -= 1
            if isinstance(outcome, ProduceFailed):
                self._failed(str(outcome))
                if outcome.passing:
                    self._trouble = outcome
            else:
                self.result.replayed += 1
                self.result.without_origin += not _says_origin(outgoing)
                if self._marks is not None:
                    self._marks[partition].settle(offset)
                self.progress(1)
            if not left and not ended.done():
                ended.set_result(None)

        for offset, outgoing in outputs:
            self._producer.send([outgoing], partial(delivered, offset, outgoing))
        try:
            async with asyncio.timeout(self._ack_timeout):
                await ended
        except TimeoutError:
            raise ClientError(
                f"no acknowledgement for {counted(left, 'letter')} within {self._ack_timeout:g} s; is the cluster "
                "reachable? They stay open, though some of them may have arrived"
            ) from None

    def _failed(self, reason: str, count: int = 1) -> None:
        self.result.failed[reason] += count
        self.progress(count)

    async def _end_early(self) -> None:
        # Callbacks settle what is acknowledged while the producer stops.
        await self._producer.stop(GRACE)
        if self._marks is not None:
            with contextlib.suppress(MarksRefused):
                await self._marks.save(self._marks.unsaved, GRACE)
