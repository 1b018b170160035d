"""The second pass of replay: letters go back where they came from, and are settled once that is acknowledged."""

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
from aioparallel.coordinates import coordinates_of
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
from aioparallel.errors import ClientError, ProduceFailed
from aioparallel.group.client import Fetched
from aioparallel.records import Headers, Outgoing, Produced, Record, TopicPartition

__all__ = ["Destination", "Replay", "Replayed"]

GRACE: Final = 5.0
"""Seconds that an interrupted replay gives to what is on its way, and again to writing down what arrived."""
PORTION: Final = 16 * 1024 * 1024
"""Bytes of what letters are without that are read before they are sent."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where letters go. ``topic``: None is the one each came from. ``same_partition``: also its partition there;
    otherwise the key decides. ``exists``: the partitions there are."""

    topic: str | None
    same_partition: bool
    exists: Collection[TopicPartition]

    def outgoing(self, record: Record) -> Outgoing | str:
        """The record as it was before it became a letter; or why it cannot go."""
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
    """How it went. ``failed``: reasons, and how often. ``without_origin``: those of the replayed ones that their topic
    takes only without the header that says where they stood first. ``full``: partitions at which it was stopped, since
    further marks would not fit, each with why and how many letters were left alone."""

    replayed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    without_origin: int = 0
    full: dict[int, tuple[str, int]] = field(default_factory=dict)


def _headers(record: Record, letter: Letter) -> Headers:
    """Its own, and where it stood first, or a service would not know it again. With those of a source it would be taken
    for a copy of what was handled before, so it says that it is none, for the group that has not handled it."""
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
    """So many at once that what is read of their sources takes little memory."""
    portion: list[Record] = []
    size = 0
    for record in records:
        letter = read_letter(record)
        if letter is not None and (left_out := letter.left_out) is not None:
            size += sum(part or 0 for part in (left_out.value, left_out.key, left_out.headers))
        portion.append(record)
        if size >= PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class Replay:
    """Sends chosen letters. ``marks``: None marks nothing. ``progress`` may be set; it hears how many more are done,
    well or not. ``ack_timeout``: seconds for the acknowledgements of one portion, longer than the producer's timeout.
    ``whole``: the letter with all of its record, where it is without a part of it, or why that cannot be had.

    A letter is settled when its output is acknowledged, and the marks are committed after each ``Fetched``. A process
    killed in between leaves at most the letters of one that were replayed and are not marked.
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

        Raises MarksRefused and ClientError. When it is cancelled, or fails, it gives what is on its way a few seconds
        and marks what was acknowledged; ``result`` counts it.
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
            # The cluster is in trouble, not the letter: each portion more would wait as long for the same answer.
            raise ClientError(f"stopped, as the cluster does not take letters now: {self._trouble}")

    async def _mark(self, partition: int) -> None:
        if self._marks is None or not self._marks[partition].unsaved:
            return
        if self._marks[partition].commit_with() is None:
            # All of them would have fitted; those that failed among them do not. What was committed before stays.
            self.result.full[partition] = too_large(self._marks[partition].partition), 0
        else:
            await self._marks.save([partition])

    def _fits(self, partition: int, offsets: set[int]) -> bool:
        """Whether all of these can be marked. It was so before the first one was sent, but letters that could not be
        sent leave gaps that were not planned."""
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
                # As large as the topic takes: where it stood first is the least that it can do without.
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
        # What arrives while the producer stops is settled by its callback, as ever.
        await self._producer.stop(GRACE)
        if self._marks is not None:
            with contextlib.suppress(MarksRefused):
                await self._marks.save(self._marks.unsaved, GRACE)
