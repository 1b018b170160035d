"""One pass over the records that a topic holds now."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aioparallel.clients.aiokafka.log_reading import read_spans
from aioparallel.group.client import Span
from aioparallel.records import Record, TopicPartition

__all__ = ["Read", "read_topic"]


class Read(NamedTuple):
    """Some records of one partition of the topic; see :class:`~aioparallel.group.client.Fetched`."""

    partition: int
    records: Sequence[Record]
    next_offset: int


async def read_topic(
    topic: str, spans: Mapping[int, Span], bootstrap_servers: str, options: Mapping[str, object]
) -> AsyncGenerator[Read, None]:
    """Read each partition from the start of its span to its end, and then stop. See
    :func:`~aioparallel.clients.aiokafka.log_reading.read_spans`."""
    places = {TopicPartition(topic, number): span for number, span in spans.items()}
    async with aclosing(read_spans(places, bootstrap_servers, options)) as reads:
        async for (_, number), records, next_offset in reads:
            yield Read(number, records, next_offset)
