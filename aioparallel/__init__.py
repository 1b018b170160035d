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
from aioparallel.errors import (
    AioparallelError,
    BrokerStartError,
    BrokerUnreachable,
    ClientError,
    ConfigurationError,
    ConsumerStateError,
    DeferralTimeout,
    DeserializationError,
    FetchFailed,
    HandlerCancelled,
    HandlerTimeout,
    InvalidOutput,
    NoCommittedOffset,
    NoHandler,
    NotAuthorized,
    NotCommitted,
    OffsetMapError,
    OffsetOutOfRange,
    ProduceFailed,
    RecordFailure,
    RecordStopped,
    Reject,
    RetryLater,
    TopicNotFound,
)
from aioparallel.handling import CallNext, Ordering
from aioparallel.options import Options
from aioparallel.policies import FailurePolicy, Producing, RetryPolicy
from aioparallel.records import Failure, Origin, Outgoing, Produced, Record, TopicPartition
from aioparallel.resources import resource

__version__ = "0.1.0"

__all__ = [
    "AioparallelError",
    "BrokerOutputs",
    "BrokerStartError",
    "BrokerUnreachable",
    "CallNext",
    "ClientError",
    "ConfigurationError",
    "ConsumerStateError",
    "Deferral",
    "DeferralTimeout",
    "DeserializationError",
    "Failure",
    "FailurePolicy",
    "FetchFailed",
    "HandlerCancelled",
    "HandlerTimeout",
    "Health",
    "InvalidOutput",
    "LongestLane",
    "NoCommittedOffset",
    "NoHandler",
    "NotAuthorized",
    "NotCommitted",
    "OffsetMapError",
    "OffsetOutOfRange",
    "Options",
    "Ordering",
    "Origin",
    "Outgoing",
    "ParallelConsumer",
    "PartitionStats",
    "Problem",
    "ProduceFailed",
    "Produced",
    "Producing",
    "Record",
    "RecordFailure",
    "RecordStopped",
    "Reject",
    "Result",
    "RetryLater",
    "RetryPolicy",
    "Stats",
    "TopicNotFound",
    "TopicPartition",
    "__version__",
    "resource",
]
