"""Progress of streaming queries as frozen values, made from the events that Spark sends.

Formats: ``StreamingQueryProgress`` of Spark 4.2. An end offset is the **next one to read**, like Kafka's committed
offsets. Only attributes of events are used, as their other forms differ between classic Spark and Spark Connect.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from aioparallel.records.record import TopicPartition
from aioparallel.spark.topic_positions import kafka_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

__all__ = ["PartitionProgress", "QueryProgress", "QuerySource", "QueryState", "after_batch", "first_line"]

QueryState = Literal["running", "idle", "terminated"]

# Batches whose durations are kept for the median.
_RECENT: Final = 20

_PACKAGE: Final = re.compile(r"^(?:[a-z_][\w$]*\.)+(?=[A-Z])")
_TRACEBACK: Final = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A query's progress in one partition after its last batch. Offsets are those of the next record."""

    start: int | None
    """Where the batch began; None in a query's first one, for which Spark does not report it."""
    end: int
    """Where it ended: everything below is processed."""
    latest: int | None
    """The end of the partition when Spark asked for it, before the batch; None if Spark has not reported it."""
    lag: int | None
    """Offsets from ``end`` to ``latest``, control records of transactions included; None: unknown. In real-time mode it
    is unknown while records arrive: Spark asks for ``latest`` when a batch begins, and then reads beyond it."""


@dataclass(frozen=True, slots=True)
class QuerySource:
    """A source of a query, as of its last batch."""

    description: str
    """Spark's description: ``KafkaV2[Subscribe[flights]]``."""
    rows: int
    """Rows read by the last batch."""
    input_rows_per_second: float
    rows_per_second: float
    partitions: Mapping[TopicPartition, PartitionProgress]
    """Empty unless it is Kafka."""
    metrics: Mapping[str, str]
    """Spark's metrics: for Kafka ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest``."""

    @property
    def lag(self) -> int | None:
        """Sum of the known lags of all partitions; None if it is not Kafka, or unknown."""
        return _sum_of_known(one.lag for one in self.partitions.values())


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One run of a streaming query, as reported to the listener."""

    run_id: UUID
    """Id of this start of the query."""
    query_id: UUID
    """Id of the query, as long as its checkpoint exists."""
    name: str | None = None
    """From ``queryName``. None without one, and before the first batch if the listener was added after the start."""
    state: QueryState = "running"
    """``idle``: it looked for new rows and found none (Spark reports this every 10 s,
    ``spark.sql.streaming.noDataProgressEventInterval``)."""
    error: str | None = None
    """The most useful line of the error that ended it; None if it runs, was stopped or is done."""
    error_class: str | None = None
    """Spark's error condition, if there is one."""
    heard_at: datetime | None = None
    """When its last event arrived, by the listener's clock."""
    started_at: datetime | None = None
    batch_at: datetime | None = None
    """When the last batch began."""
    batch_id: int | None = None
    """None before the end of the first batch, like the values below."""
    batch_seconds: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last batch by phase: ``latestOffset``, ``queryPlanning``, ``walCommit``, ``addBatch``, ..."""
    recent_batch_seconds: tuple[float, ...] = ()
    """The last 20, oldest first."""
    rows: int | None = None
    """Rows read by the last batch from all sources."""
    rows_per_second: float | None = None
    """Rate while the last batch ran."""
    input_rows_per_second: float | None = None
    """Rows of the last batch divided by the time since the batch before began: the rate of arrival. 0 in the first."""
    sink_rows: int | None = None
    """Rows written by the last batch; None: the sink does not report it."""
    sources: tuple[QuerySource, ...] = ()
    observed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Results of ``DataFrame.observe`` by name."""
    batches: int = 0
    """Batches reported to the listener."""
    total_rows: int = 0
    """Rows read by these."""

    @property
    def label(self) -> str:
        """The name, or the first digits of the id."""
        return self.name or f"query {str(self.query_id)[:8]}"

    @property
    def median_batch_seconds(self) -> float | None:
        """Median duration of the recent batches."""
        return statistics.median(self.recent_batch_seconds) if self.recent_batch_seconds else None

    @property
    def lag(self) -> int | None:
        """Sum of the known lags of all Kafka sources; None if there is none, or unknown."""
        return _sum_of_known(source.lag for source in self.sources)

    @property
    def largest_lag(self) -> tuple[TopicPartition, int] | None:
        """The partition with the largest lag, and its lag."""
        lags = [
            (partition, one.lag)
            for source in self.sources
            for partition, one in source.partitions.items()
            if one.lag is not None
        ]
        return max(lags, key=lambda lag: lag[1], default=None)

    @property
    def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition; the lowest if several sources read it."""
        ends: dict[TopicPartition, int] = {}
        for source in self.sources:
            for partition, one in source.partitions.items():
                ends[partition] = min(one.end, ends.get(partition, one.end))
        return ends


def after_batch(before: QueryProgress, progress: StreamingQueryProgress) -> QueryProgress:
    """The progress after one more batch. Raises errors of unexpected attributes."""
    seconds = progress.batchDuration / 1000
    sink_rows = progress.sink.numOutputRows
    return replace(
        before,
        name=progress.name,
        state="terminated" if before.state == "terminated" else "running",
        batch_at=timestamp(progress.timestamp),
        batch_id=progress.batchId,
        batch_seconds=seconds,
        phase_seconds={phase: milliseconds / 1000 for phase, milliseconds in progress.durationMs.items()},
        recent_batch_seconds=(*before.recent_batch_seconds, seconds)[-_RECENT:],
        rows=progress.numInputRows,
        rows_per_second=_finite(progress.processedRowsPerSecond),
        input_rows_per_second=_finite(progress.inputRowsPerSecond),
        sink_rows=sink_rows if sink_rows >= 0 else None,
        sources=tuple(_source(source) for source in progress.sources),
        observed={name: row.asDict() for name, row in progress.observedMetrics.items()},
        batches=before.batches + 1,
        total_rows=before.total_rows + progress.numInputRows,
    )


def first_line(exception: str) -> str:
    """The most useful line of a query's exception, which has pages of stack traces: for a Python error its last line,
    otherwise the first one without the package of the exception's class."""
    text = exception.strip().partition("\n\tat ")[0]
    if _TRACEBACK in text:
        for line in text.rpartition(_TRACEBACK)[2].splitlines():
            if line and not line[0].isspace():
                return line.strip()
    lines = text.splitlines()
    return _PACKAGE.sub("", lines[0].partition(" SQLSTATE: ")[0].strip()) if lines else ""


def timestamp(text: str) -> datetime | None:
    """Parses Spark's ISO 8601 time in UTC; None for anything else."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _source(progress: SourceProgress) -> QuerySource:
    return QuerySource(
        description=progress.description,
        rows=progress.numInputRows,
        input_rows_per_second=_finite(progress.inputRowsPerSecond),
        rows_per_second=_finite(progress.processedRowsPerSecond),
        partitions=_partitions(progress) if "Kafka" in progress.description else {},
        metrics=dict(progress.metrics),
    )


def _partitions(progress: SourceProgress) -> dict[TopicPartition, PartitionProgress]:
    given = progress.startOffset, progress.endOffset, progress.latestOffset
    # No offset is None in classic Spark, and "null" in Spark Connect.
    starts, ends, latest = (kafka_offsets(text or "null") or {} for text in given)
    is_behind_us = any(latest.get(partition, end) < end for partition, end in ends.items())
    found = {}
    for partition, end in sorted(ends.items()):
        last = latest.get(partition)
        lag = None if last is None or is_behind_us else last - end
        found[partition] = PartitionProgress(starts.get(partition), end, last, lag)
    return found


def _sum_of_known(lags: Iterable[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _finite(rate: float) -> float:
    return rate if math.isfinite(rate) else 0.0
