"""The consumer's process of ``latency.py``: a no-op handler that notes when it was called.

Its job: ``bootstrap_servers``, ``topic``, ``group``, ``partitions``, ``records`` (it stops after so many), ``evidence``
(a file). It tells ``ready`` when all partitions are open, and ``handled`` when it has written the evidence: a row of
:data:`ROW` for each call of the handler, in their order.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioparallel import ParallelConsumer, Record
from aioparallel.cli.bench.stream import STAMP, STAMP_BYTES
from aioparallel.cli.bench.worker import job, tell
from aioparallel.cli.demo.process import run_until_parent_ends
from aioparallel.clients import AiokafkaClient
from aioparallel.errors import ConsumerStateError
from aioparallel.event_loop import quick_collections
from aioparallel.group.client import Fetched
from aioparallel.records import TopicPartition

__all__ = ["CONCURRENCY", "ROW", "main"]

CONCURRENCY: Final = 1_000
ROW: Final = np.dtype(
    [("partition", "<i8"), ("offset", "<i8"), ("serial", "<i8"), ("sent", "<i8"), ("arrived", "<i8"), ("began", "<i8")]
)
"""A record, its number within the topic, and nanoseconds of CLOCK_MONOTONIC: sent by the producer, given out by the
client's fetch, handler begun."""
_POLL: Final = 0.02


class ArrivalClient(AiokafkaClient):
    """Notes when each fetch returned what: one entry for the records that a fetch took from one partition."""

    def __init__(self, bootstrap_servers: str, group_id: str, partitions: int) -> None:
        super().__init__(bootstrap_servers, group_id)
        self._ends = [array("q") for _ in range(partitions)]
        self._times = [array("q") for _ in range(partitions)]

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """As the client itself."""
        fetched = await super().fetch(quotas, most)
        now = time.monotonic_ns()
        for one in fetched:
            self._ends[one.partition.partition].append(one.next_offset)
            self._times[one.partition.partition].append(now)
        return fetched

    def arrivals(self, partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """When these records came, in nanoseconds."""
        found = np.zeros(len(offsets), dtype=np.int64)
        for partition, (ends, times) in enumerate(zip(self._ends, self._times, strict=True)):
            here = partitions == partition
            # The first fetch that ended behind the record.
            found[here] = np.asarray(times)[np.searchsorted(np.asarray(ends), offsets[here], side="right")]
        return found


class _Notes:
    """What the handler saw; a call costs four appends."""

    def __init__(self, records: int) -> None:
        self.done = asyncio.Event()
        self._records = records
        self._partitions, self._offsets, self._began = array("q"), array("q"), array("q")
        self._stamps = bytearray()

    async def handle(self, record: Record[Any, Any]) -> None:
        """The handler."""
        self._began.append(time.monotonic_ns())
        self._partitions.append(record.partition)
        self._offsets.append(record.offset)
        self._stamps += record.value[:STAMP_BYTES]
        if len(self._began) == self._records:
            self.done.set()

    def rows(self, client: ArrivalClient) -> NDArray[np.void]:
        """Everything noted."""
        stamps = np.frombuffer(bytes(self._stamps), dtype=STAMP)
        rows = np.zeros(len(stamps), dtype=ROW)
        rows["partition"], rows["offset"], rows["began"] = self._partitions, self._offsets, self._began
        rows["serial"], rows["sent"] = stamps["serial"], stamps["sent"]
        rows["arrived"] = client.arrivals(rows["partition"], rows["offset"])
        return rows


async def _consume(order: dict[str, Any]) -> None:
    servers, group = order["bootstrap_servers"], order["group"]
    client = ArrivalClient(servers, group, order["partitions"])
    notes = _Notes(order["records"])
    consumer = ParallelConsumer(
        order["topic"], bootstrap_servers=servers, group_id=group, client=client, max_concurrency=CONCURRENCY
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(notes.handle))
        work = asyncio.create_task(_work(consumer, order["partitions"], notes))
        await asyncio.wait([running, work], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        consumer.stop()
        await running  # raises what ended it before its work was done
    notes.rows(client).tofile(Path(order["evidence"]))
    tell(handled=order["records"])


async def _work(consumer: ParallelConsumer, partitions: int, notes: _Notes) -> None:
    """Until everything was handled; tells when all partitions are open."""
    while _open_partitions(consumer) < partitions:
        await asyncio.sleep(_POLL)
    tell(ready=True)
    await notes.done.wait()


def _open_partitions(consumer: ParallelConsumer) -> int:
    try:
        return sum(one.state == "open" for one in consumer.stats().partitions)
    except ConsumerStateError:  # not running yet
        return 0


def main() -> None:
    """The process."""
    quick_collections()
    run_until_parent_ends(_consume(job()))


if __name__ == "__main__":
    main()
