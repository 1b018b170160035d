"""Figures of streaming queries, from the events that Spark sends: plain and frozen.

Formats: ``StreamingQueryProgress`` of Spark 4.2. Offsets of a Kafka source are a JSON text ``{"topic": {"0": 123}}``;
an end offset is the **next one to read**, as Kafka's committed offsets are. Events are read by attributes only: their
other forms differ between classic Spark and Spark Connect.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from aioparallel.records import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

__all__ = ["PartitionProgress", "QueryProgress", "QuerySource", "QueryState", "after_batch", "first_line"]

QueryState = Literal["running", "idle", "terminated"]

# Batches whose times are kept for the median.
RECENT: Final = 20

_PACKAGE: Final = re.compile(r"^(?:[a-z_][\w$]*\.)+(?=[A-Z])")
_TRACEBACK: Final = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a query stands in one partition, as of its last batch. Offsets are those of the next record."""

    start: int | None
    """Where the batch began; None in a query's first one: Spark does not say."""
    end: int
    """Where it ended: all below is done."""
    latest: int | None
    """Where the partition ended when Spark asked, before the batch; None: Spark has not said."""
    lag: int | None
    """Records (control records of transactions among them) between the two; None: not known. In real-time mode it is
    not known while anything comes in: Spark asks for ``latest`` when a batch begins, and then reads on beyond it."""


@dataclass(frozen=True, slots=True)
class QuerySource:
    """One of the sources that a query reads, as of its last batch."""

    description: str
    """As Spark has it: ``KafkaV2[Subscribe[flights]]``."""
    rows: int
    """Read by the last batch."""
    input_rows_per_second: float
    rows_per_second: float
    partitions: Mapping[TopicPartition, PartitionProgress]
    """Empty unless it is Kafka."""
    metrics: Mapping[str, str]
    """Spark's own: for Kafka ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest``."""

    @property
    def lag(self) -> int | None:
        """Records behind, of all partitions together; None: not Kafka, or not known."""
        known = [one.lag for one in self.partitions.values() if one.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One run of a streaming query, as the listener has heard of it."""

    run_id: UUID
    """Of this start of the query."""
    query_id: UUID
    """Of the query; it lasts as long as its checkpoint."""
    name: str | None = None
    """As given with ``queryName``; None also until the first batch where the listener was added after the start."""
    state: QueryState = "running"
    """``idle``: it looked for new rows and found none (Spark says so every 10 s,
    ``spark.sql.streaming.noDataProgressEventInterval``)."""
    error: str | None = None
    """What ended it, the first line that says something; None: it has not ended, or was stopped, or was done."""
    error_class: str | None = None
    """Spark's error condition, where it has one."""
    heard_at: datetime | None = None
    """When the listener heard of it last, by its own clock: of its start, a batch, looking in vain, its end."""
    started_at: datetime | None = None
    batch_at: datetime | None = None
    """When the last batch began."""
    batch_id: int | None = None
    """None until the first batch is done; so are the figures below."""
    batch_seconds: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last batch by phase: ``latestOffset``, ``queryPlanning``, ``walCommit``, ``addBatch``, ..."""
    recent_batch_seconds: tuple[float, ...] = ()
    """The last 20, oldest first."""
    rows: int | None = None
    """Read by the last batch, of all sources."""
    rows_per_second: float | None = None
    """Of the last batch while it ran."""
    input_rows_per_second: float | None = None
    """Rows of the last batch over the time since the batch before began: how fast they come in. 0 in the first."""
    sink_rows: int | None = None
    """Written by the last batch; None: the sink does not say."""
    sources: tuple[QuerySource, ...] = ()
    observed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What ``DataFrame.observe`` has computed, by its name."""
    batches: int = 0
    """Batches that the listener has heard of."""
    total_rows: int = 0
    """Read by these."""

    @property
    def label(self) -> str:
        """The name, or the beginning of the id."""
        return self.name or f"query {str(self.query_id)[:8]}"

    @property
    def median_batch_seconds(self) -> float | None:
        """The p50 of the recent batches."""
        return statistics.median(self.recent_batch_seconds) if self.recent_batch_seconds else None

    @property
    def lag(self) -> int | None:
        """Records behind, of all Kafka sources together; None: there is none, or Spark has not said."""
        known = [source.lag for source in self.sources if source.lag is not None]
        return sum(known) if known else None

    @property
    def largest_lag(self) -> tuple[TopicPartition, int] | None:
        """The partition that is most behind, and by how many records."""
        lags = [
            (partition, one.lag)
            for source in self.sources
            for partition, one in source.partitions.items()
            if one.lag is not None
        ]
        return max(lags, key=lambda lag: lag[1], default=None)

    @property
    def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition. Of sources that read the same partition the lowest counts."""
        ends: dict[TopicPartition, int] = {}
        for source in self.sources:
            for partition, one in source.partitions.items():
                ends[partition] = min(one.end, ends.get(partition, one.end))
        return ends


def after_batch(before: QueryProgress, progress: StreamingQueryProgress) -> QueryProgress:
    """The figures after one more batch. Raises what attributes of another shape lead to; ``before`` still holds."""
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
        recent_batch_seconds=(*before.recent_batch_seconds, seconds)[-RECENT:],
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
    """What of a query's exception, a page of stack traces, says most: of a Python error its own line, otherwise the
    first one, without the package of the exception's class."""
    said = exception.strip().partition("\n\tat ")[0]
    if _TRACEBACK in said:
        for line in said.rpartition(_TRACEBACK)[2].splitlines():
            if line and not line[0].isspace():
                return line.strip()
    lines = said.splitlines()
    return _PACKAGE.sub("", lines[0].partition(" SQLSTATE: ")[0].strip()) if lines else ""


def timestamp(text: str) -> datetime | None:
    """Spark's ISO 8601 in UTC; None if it is anything else."""
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
    starts, ends, latest = map(_offsets, (progress.startOffset, progress.endOffset, progress.latestOffset))
    is_behind_us = any(latest.get(partition, end) < end for partition, end in ends.items())
    found = {}
    for partition, end in sorted(ends.items()):
        last = latest.get(partition)
        lag = None if last is None or is_behind_us else last - end
        found[partition] = PartitionProgress(starts.get(partition), end, last, lag)
    return found


def _offsets(text: str | None) -> dict[TopicPartition, int]:
    """Of ``{"topic": {"0": 123}}``; empty for anything else: no offset is ``None`` in classic Spark, ``null`` in
    Spark Connect."""
    try:
        topics = json.loads(text or "null")
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _finite(rate: float) -> float:
    return rate if math.isfinite(rate) else 0.0
