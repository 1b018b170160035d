"""Completes letters that lack a part of their record, by reading the original record while it exists."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from aioparallel.cli.dlq.selecting import DeadLetter
from aioparallel.delivery.first_places import checksum_of
from aioparallel.delivery.letters import (
    LeftOut,
    Letter,
    is_of_letter,
    original_headers,
    read_letter,
    with_origin_timestamp,
)
from aioparallel.group.client import Client, Span
from aioparallel.queues.kmq.markers import with_count
from aioparallel.records.errors import ClientError
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Sources"]

READ_TIMEOUT: Final = 30.0
"""Seconds for all requests about one record."""
_CLOCKS: Final = 60.0
"""Seconds by which clocks may differ: a record that was written later than its letter is another one."""


class Sources:
    """Reads original records."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def completed(self, dead: DeadLetter) -> DeadLetter:
        """The letter with its whole record, or with the reason why it cannot be read."""
        if dead.letter is None or dead.letter.left_out is None:
            return dead
        found = await self.whole(dead.record)
        if isinstance(found, str):
            return dead._replace(gone=found)
        # A broker's letter does not say when the record was written.
        letter = read_letter(found) if dead.letter.left_out.checksum is None else dead.letter
        return dead._replace(record=found, letter=letter, is_completed=True, left_out=dead.letter.left_out)

    async def whole(self, record: Record) -> Record | str:
        """The letter with its whole record; or why it cannot be read."""
        letter = read_letter(record)
        if letter is None or letter.left_out is None:
            return record
        place = f"{letter.origin.topic}-{letter.origin.partition} offset {letter.origin.offset}"
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                found = await self._read(letter)
        except TimeoutError:
            return f"{place} could not be read within {READ_TIMEOUT:g} s; is its broker available?"
        except ClientError as error:
            return f"{place} could not be read: {error}"
        if isinstance(found, str):
            return f"the record is gone: {found}"
        return _completed(record, letter.left_out, found)

    async def _read(self, letter: Letter) -> Record | str:
        topic, number, offset, _ = letter.origin
        assert letter.left_out is not None
        partition = TopicPartition(topic, number)
        if partition not in await self._client.partitions([topic], READ_TIMEOUT):
            return f"partition {number} of {topic} no longer exists"
        begins = (await self._client.beginning_offsets([partition], READ_TIMEOUT)).get(partition)
        ends = (await self._client.end_offsets([partition], READ_TIMEOUT)).get(partition)
        if begins is None or ends is None:
            raise TimeoutError
        if not begins <= offset < ends:
            return f"{partition} holds the offsets {begins:,} to {ends - 1:,} only, and its offset was {offset:,}"
        async with aclosing(self._client.read({partition: Span(offset, offset + 1)})) as reads:
            async for fetched in reads:
                for record in fetched.records:
                    if record.offset != offset:
                        continue
                    if not _is_the_same(record, letter, letter.left_out):
                        return f"{partition} offset {offset:,} is another record now; was the topic created anew?"
                    return record
        return f"{partition} does not hold offset {offset:,} any more; it may be compacted"


def _is_the_same(record: Record, letter: Letter, left_out: LeftOut) -> bool:
    """Whether the record may be the one of the letter. Of a broker's letter only its time is known."""
    if left_out.checksum is None:
        return record.timestamp <= (letter.last.at + _CLOCKS) * 1000
    return checksum_of(record.key, record.value) == left_out.checksum


def _completed(record: Record, left_out: LeftOut, found: Record) -> Record:
    headers = record.headers
    if left_out.headers is not None:
        ours = tuple(header for header in headers if is_of_letter(header[0]))
        # A queue's redelivery count is a header of its copies, and letters are written without it.
        headers = (*with_count(original_headers(found.headers), None), *ours)
    if left_out.checksum is None:
        headers = with_origin_timestamp(headers, found.timestamp)
    return Record(
        record.topic, record.partition, record.offset, found.key, found.value, headers, timestamp=record.timestamp
    )
