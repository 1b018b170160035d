"""The asyncio parallel consumer for Kafka.

::

    from aioparallel import Ordering, ParallelConsumer, Record

    async def handle(record: Record) -> None: ...

    consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="enrich")
    async with consumer:
        await consumer.run(handle)
"""

from aioparallel.consumer import ParallelConsumer
from aioparallel.engine.stats import LongestLane, PartitionStats, Stats
from aioparallel.options import Options, Ordering
from aioparallel.records import Record, TopicPartition

__all__ = [
    "LongestLane",
    "Options",
    "Ordering",
    "ParallelConsumer",
    "PartitionStats",
    "Record",
    "Stats",
    "TopicPartition",
]
