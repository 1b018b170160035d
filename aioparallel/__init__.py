"""The asyncio parallel consumer for Kafka.

::

    from aioparallel import Ordering, ParallelConsumer, Record

    async def handle(record: Record) -> None: ...

    consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="enrich")
    async with consumer:
        await consumer.run(handle)

And its engine without Kafka, over any items: :func:`parallel_map`.
"""

from typing import TYPE_CHECKING

from aioparallel.config.extension import ConsumerContext, Extension, PartitionState
from aioparallel.config.handling import CallNext, Handling, Ordering
from aioparallel.config.options import Options
from aioparallel.config.policies import Deduplicate, FailurePolicy, Producing, RetryPolicy, Transactions
from aioparallel.config.security import Security, Token
from aioparallel.config.state import State
from aioparallel.delivery.results import Result
from aioparallel.engine.flow.flow import FlowStats, Outcome
from aioparallel.engine.flow.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.flow.work import OnError, Work
from aioparallel.group.client import CommitFault, Committed
from aioparallel.handlers.batches import Batch, batches
from aioparallel.handlers.blocking.threads import in_threads
from aioparallel.handlers.resources import resource
from aioparallel.mapping import ParallelMap, parallel_map
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.record_logging import RecordFilter, name_records
from aioparallel.observe.stats import BrokerOutputs, LongestLane, PartitionStats, Paused, Stats
from aioparallel.records.deferral import Deferral
from aioparallel.records.errors import (
    AioparallelError,
    AuthenticationFailed,
    BadStatus,
    BrokerStartError,
    BrokerUnreachable,
    CheckFailed,
    ClientError,
    ClusterChanged,
    ConfigurationError,
    ConsumerStateError,
    DeferralTimeout,
    DeserializationError,
    FailedInProcess,
    FetchFailed,
    HandlerCancelled,
    HandlerNotStopped,
    HandlerTimeout,
    InstanceFenced,
    InstanceInUse,
    InvalidOutput,
    InvalidValues,
    JarsMissing,
    JavaNotFound,
    LoopThreadEnded,
    NoCommittedOffset,
    NoHandler,
    NoOffsetMap,
    NotAuthorized,
    NotCommitted,
    NotSkipped,
    NotToBlame,
    OffsetMapError,
    OffsetOutOfRange,
    OutOfResources,
    PositionOutsideLog,
    ProcessDied,
    ProduceFailed,
    RecordFailure,
    RecordStopped,
    RecordWithoutKey,
    Reject,
    RequestFailed,
    RequestTimeout,
    RetryLater,
    StateFailed,
    StateLogTruncated,
    StateNotRestored,
    TaskFailed,
    TopicNotFound,
    TransactionsUnsupported,
    UndecodableRecord,
    UnreadableBatch,
    UnreadableRow,
    WorkCancelled,
)
from aioparallel.records.record import Failure, Origin, Outgoing, Produced, Record, TopicPartition
from aioparallel.records.skipped import Skipped
from aioparallel.records.source_headers import source_headers

if TYPE_CHECKING:
    from aioparallel.consumer import ParallelConsumer
    from aioparallel.handlers.blocking.processes import in_processes

__version__ = "0.1.0"

__all__ = [
    "AioparallelError",
    "AuthenticationFailed",
    "BadStatus",
    "Batch",
    "BrokerOutputs",
    "BrokerStartError",
    "BrokerUnreachable",
    "CallNext",
    "CheckFailed",
    "ClientError",
    "ClusterChanged",
    "CommitFault",
    "Committed",
    "ConfigurationError",
    "ConsumerContext",
    "ConsumerStateError",
    "Deduplicate",
    "Deferral",
    "DeferralTimeout",
    "DeserializationError",
    "Extension",
    "FailedInProcess",
    "Failure",
    "FailurePolicy",
    "FetchFailed",
    "FlowStats",
    "HandlerCancelled",
    "HandlerNotStopped",
    "HandlerTimeout",
    "Handling",
    "Health",
    "InstanceFenced",
    "InstanceInUse",
    "InvalidOutput",
    "InvalidValues",
    "JarsMissing",
    "JavaNotFound",
    "LongestLane",
    "LoopThread",
    "LoopThreadEnded",
    "NoCommittedOffset",
    "NoHandler",
    "NoOffsetMap",
    "NotAuthorized",
    "NotCommitted",
    "NotSkipped",
    "NotToBlame",
    "OffsetMapError",
    "OffsetOutOfRange",
    "OnError",
    "Options",
    "Ordering",
    "Origin",
    "OutOfResources",
    "Outcome",
    "Outgoing",
    "ParallelConsumer",
    "ParallelMap",
    "PartitionState",
    "PartitionStats",
    "Paused",
    "PositionOutsideLog",
    "Problem",
    "ProblemKind",
    "ProcessDied",
    "ProduceFailed",
    "Produced",
    "Producing",
    "Record",
    "RecordFailure",
    "RecordFilter",
    "RecordStopped",
    "RecordWithoutKey",
    "Reject",
    "RequestFailed",
    "RequestTimeout",
    "Result",
    "RetryLater",
    "RetryPolicy",
    "Security",
    "Skipped",
    "State",
    "StateFailed",
    "StateLogTruncated",
    "StateNotRestored",
    "Stats",
    "TaskFailed",
    "ThreadedFlow",
    "Token",
    "TopicNotFound",
    "TopicPartition",
    "Transactions",
    "TransactionsUnsupported",
    "UndecodableRecord",
    "UnreadableBatch",
    "UnreadableRow",
    "Work",
    "WorkCancelled",
    "__version__",
    "batches",
    "in_processes",
    "in_threads",
    "name_records",
    "parallel_map",
    "resource",
    "source_headers",
]


def __getattr__(name: str) -> object:
    # Late: it loads the Kafka client, which parallel_map does not need (a tenth of a second in each process).
    if name == "ParallelConsumer":
        from aioparallel.consumer import ParallelConsumer  # noqa: PLC0415

        globals()[name] = ParallelConsumer
        return ParallelConsumer
    if name == "in_processes":  # multiprocessing
        from aioparallel.handlers.blocking.processes import in_processes  # noqa: PLC0415

        globals()[name] = in_processes
        return in_processes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
