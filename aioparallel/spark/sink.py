"""A sink that calls an async handler for each written row, for side effects (``df.write``, ``df.writeStream``).

A write handles each row, and no ``limit`` stops it. Failed tasks and micro-batches are repeated, so each row has an
idempotency key (:mod:`aioparallel.spark.row_names`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aioparallel.config.handling import Handling, check_choice
from aioparallel.config.policies import RetryPolicy
from aioparallel.config.unknown_options import refuses_others
from aioparallel.engine.flow.sizes import Sized
from aioparallel.engine.flow.work import Work
from aioparallel.handlers.batches import Batch, BatchHandler
from aioparallel.records.errors import ConfigurationError, Reject
from aioparallel.spark.keys import LaneKey, RowLabel, check_hashable, key_function
from aioparallel.spark.limits import DEFAULT_RETRY, MAX_BUFFERED_BYTES, calls_per_task, log_limits
from aioparallel.spark.row_names import Naming, RowNames
from aioparallel.spark.rows import Unreadable, rows_of
from aioparallel.spark.safe_errors import safe_errors
from aioparallel.spark.schemas import check_readable
from aioparallel.spark.task import Shipment, check_returns, partition_number
from aioparallel.spark.text_options import TextOptions
from aioparallel.spark.values import Row, fresh

__all__ = ["AioparallelDataSource", "SinkRow", "Written", "register_sink"]

logger = logging.getLogger(__name__)

_ADVICE: Final = 'the option on_error="skip" goes on without it'


@refuses_others
def register_sink(spark: SparkSession) -> None:
    """Register ``format("aioparallel")`` in this session.

    ::

        register_sink(spark)
        options = {"handler": "shop.calls:notify", "key": "customer", "id": "order"}
        df.write.format("aioparallel").options(**options).mode("append").save()

    Options, all as text:

    ``handler``: ``module:function``, an async function of a :class:`SinkRow`, whose result is ignored. Driver and
    executors import the module.
    ``key``: columns, separated by commas: rows with equal keys within a partition run one after the other.
    ``id``: columns that together identify a row, for its idempotency key; ``none`` if the service needs no keys.
    Required unless the rows have ``topic``, ``partition`` and ``offset`` of :func:`read_topic`.
    ``max_concurrency``: most handlers at once in each task (100); or ``job_concurrency`` and ``tasks``.
    ``max_buffered``: rows read ahead in each task (10,000); ``max_buffered_bytes``: their memory (64 MiB).
    ``timeout``: seconds for each attempt (none).
    ``attempts``: most calls of the handler for a row (3), including those that raise RetryLater.
    ``on_error``: ``raise`` (the task fails) or ``skip``.
    ``resources``: ``module:name`` of a dict of functions that return async context managers.
    """
    spark.dataSource.register(AioparallelDataSource)


class SinkRow(dict[str, Any]):
    """A row for a sink's handler."""

    __slots__ = ("_name",)

    _name: str | Reject | None

    @property
    def idempotency_key(self) -> str:
        """Identifies the row when a task or a micro-batch is repeated, also in a new process.

        Made from the columns of the option ``id``: rows that are equal in them share a key. Or from ``topic``,
        ``partition`` and ``offset``, a digest of all values, and the index among equal rows of the task; if a value
        changes each time (``now()``, ``rand()``), so does the key. Raises ConfigurationError with ``id="none"``.
        """
        if not isinstance(self._name, str):
            raise ConfigurationError("id", "none", "gives rows no keys: name the columns that identify a row")
        return self._name

    def fresh(self) -> SinkRow:
        """A copy, with the same key."""
        copied = SinkRow(fresh(dict(self)))
        copied._name = self._name
        return copied


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task."""

    partition: int
    rows: int
    skipped: int


class AioparallelDataSource(DataSource):
    """``format("aioparallel")`` for writing, see :func:`register_sink`."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "aioparallel"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises ConfigurationError for a wrong option, on the driver."""
        if overwrite:
            raise ConfigurationError("mode", "overwrite", 'calls cannot be undone: use mode("append")')
        with safe_errors():
            return _BatchWriter(_Plan.of(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        """Raises ConfigurationError for a wrong option, on the driver."""
        with safe_errors():
            return _StreamWriter(_Plan.of(self.options, schema))


@dataclass(frozen=True)
class _Plan:
    """Sent to the executors."""

    shipment: Shipment[SinkRow, object]
    keys: tuple[str, ...]
    naming: Naming

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> _Plan:
        given = TextOptions(options, schema.fieldNames())
        keys = given.columns("key")
        per_task = calls_per_task(given.count("max_concurrency"), given.count("job_concurrency"), given.count("tasks"))
        on_error = given.text("on_error", "raise")
        check_choice("on_error", on_error, ("raise", "skip"))
        handler: Callable[[SinkRow], Awaitable[object]] = given.imported("handler")
        check_returns("handler", handler)
        if isinstance(handler, BatchHandler):
            handler = handler.with_handler(_NoValues(handler))
        check_readable(schema)
        check_hashable(schema, keys)
        attempts = given.count("attempts")
        handling = Handling(
            order_by=_Key(key_function(keys) if keys else None),
            max_concurrency=per_task,
            max_buffered=given.count("max_buffered") or 10_000,
            handler_timeout=given.seconds("timeout"),
            resources=given.resources(),
        )
        retry = DEFAULT_RETRY if attempts is None else RetryPolicy(max_attempts=attempts, count_waits=True)
        work = Work(
            handler,
            handling,
            retry=retry,
            on_error="skip" if on_error == "skip" else "raise",
            max_buffered_bytes=given.count("max_buffered_bytes") or MAX_BUFFERED_BYTES,
            advice=_ADVICE,
        )
        log_limits(f"sink {given.text('handler', '')}", per_task, given.count("tasks"))
        return cls(Shipment.of(work), keys, Naming.of(given, schema))

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        partition, names = partition_number(), RowNames(self.naming)
        read = ended = 0

        def rows() -> Iterator[Sized[Any]]:
            nonlocal read
            for part in rows_of(batches):
                read += len(part)
                yield Sized([one if isinstance(one, Unreadable) else _named(one, names) for one in part], part.size)

        for outcomes in self.shipment.run(rows(), RowLabel(partition, self.keys)):
            ended += len(outcomes)
        return Written(partition, ended, read - ended)


def _named(row: Row, names: RowNames) -> SinkRow:
    named = SinkRow(row)
    named._name = names.name(named)
    return named


class _Key(LaneKey[SinkRow]):
    """The key of a row. Raises for a row without a name, so it fails before its handler is called."""

    __slots__ = ()

    def __call__(self, row: SinkRow | Unreadable) -> Hashable:
        if isinstance(row, SinkRow) and isinstance(row._name, Reject):
            raise row._name
        return super().__call__(row)


class _NoValues:
    """Ignores the results of a batch handler."""

    def __init__(self, handler: Callable[[Any], Awaitable[object]]) -> None:
        self._handler = handler

    async def __call__(self, batch: Batch[SinkRow]) -> list[None]:
        await self._handler(batch)
        return [None] * len(batch)


class _Writer:
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with safe_errors():
            return self._plan.write(iterator)


class _BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_commit("batch write", messages)


class _StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _log_commit(f"batch {batchId}", messages)


def _log_commit(unit: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    rows, skipped = sum(one.rows for one in written), sum(one.skipped for one in written)
    logger.info("%s: %d rows written, %d left out", unit, rows, skipped, extra={"action": "sink_committed"})
