"""``aioparallel consume --follow`` on a log that changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import cast

import pytest

from aioparallel.cli.consume import reading
from aioparallel.cli.consume.command import Chosen
from aioparallel.cli.consume.reading import Reading
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.records.record import Record, TopicPartition

P, NEW = TopicPartition("t", 0), TopicPartition("t", 1)


class Log:
    """A client of a topic whose logs are equal. ``topic_id``: another one is another log."""

    def __init__(self, *values: bytes) -> None:
        self.values = list(values)
        self.topic_id = b"1"
        self.all = {P}
        self.asked = asyncio.Event()

    async def partitions(self, _topics: Collection[str], _timeout: float) -> set[TopicPartition]:
        """Those that there are now."""
        return set(self.all)

    async def beginning_offsets(self, partitions: Collection[TopicPartition], _timeout: float) -> Mapping[object, int]:
        """Nothing is ever deleted."""
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Collection[TopicPartition], _timeout: float) -> Mapping[object, int]:
        """Asked in each round."""
        self.asked.set()
        return dict.fromkeys(partitions, len(self.values))

    async def topic_ids(self, _topics: Collection[str], _timeout: float) -> Mapping[str, bytes]:
        """The id of the log."""
        return {"t": self.topic_id}

    async def read(self, spans: Mapping[TopicPartition, Span]) -> AsyncIterator[Fetched]:
        """All at once."""
        for one, span in spans.items():
            yield Fetched(
                one, [Record(*one, at, None, self.values[at]) for at in range(span.start, span.end)], span.end
            )

    async def rounds(self) -> None:
        """Wait until it was asked twice more."""
        for _ in range(2):
            self.asked.clear()
            await asyncio.wait_for(self.asked.wait(), 10)


@pytest.mark.parametrize(("topic_id", "shown"), [(b"2", [b"x", b"y", b"z"]), (b"1", [b"z"])])
async def test_a_shorter_log(topic_id: bytes, shown: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a topic that was deleted and created again is shown from its beginning; of one that has lost its newest
    records, what comes."""
    monkeypatch.setattr(reading, "FOLLOW_INTERVAL", 0.001)
    log, found = Log(b"a", b"b", b"c"), []
    which = Chosen(everything=True, follow=True)
    following = asyncio.create_task(
        Reading(cast("Client", log), {P}, which).run(lambda record: found.append(record.value))
    )
    await log.rounds()
    log.topic_id, log.values = topic_id, [b"x", b"y"]
    await log.rounds()
    log.values.append(b"z")
    await log.rounds()
    following.cancel()
    await asyncio.wait([following])
    assert found == [b"a", b"b", b"c", *shown]


@pytest.mark.parametrize(("partitions", "shown"), [((), [(0, b"a"), (1, b"a")]), ((0,), [(0, b"a")])])
async def test_a_partition_that_is_added(
    partitions: tuple[int, ...], shown: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown from its beginning, unless others were chosen."""
    monkeypatch.setattr(reading, "FOLLOW_INTERVAL", 0.001)
    monkeypatch.setattr(reading, "LOOK_FOR_PARTITIONS", 1)
    log, found = Log(b"a"), []
    which = Chosen(everything=True, follow=True, partition=partitions)
    following = asyncio.create_task(
        Reading(cast("Client", log), {P}, which).run(lambda record: found.append((record.partition, record.value)))
    )
    await log.rounds()
    log.all.add(NEW)
    await log.rounds()
    await log.rounds()
    following.cancel()
    await asyncio.wait([following])
    assert found == shown
