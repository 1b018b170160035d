"""The asyncio parallel consumer for Kafka.

::

    from aioparallel import Ordering, ParallelConsumer, Record

    async def handle(record: Record) -> None: ...

    consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="enrich")
    async with consumer:
        await consumer.run(handle)
"""

from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.results import Result
from aioparallel.engine.deferral import Deferral
from aioparallel.engine.health import Health, Problem
from aioparallel.engine.stats import BrokerOutputs, LongestLane, PartitionStats, Stats
from aioparallel.errors import Reject, RetryLater
from aioparallel.options import CallNext, Options, Ordering
from aioparallel.policies import FailurePolicy, Producing, RetryPolicy
from aioparallel.records import Failure, Origin, Outgoing, Produced, Record, TopicPartition
from aioparallel.resources import resource

__all__ = [
    "BrokerOutputs",
    "CallNext",
    "Deferral",
    "Failure",
    "FailurePolicy",
    "Health",
    "LongestLane",
    "Options",
    "Ordering",
    "Origin",
    "Outgoing",
    "ParallelConsumer",
    "PartitionStats",
    "Problem",
    "Produced",
    "Producing",
    "Record",
    "Reject",
    "Result",
    "RetryLater",
    "RetryPolicy",
    "Stats",
    "TopicPartition",
    "resource",
]
