"""A sink: an async handler for each row written, for side effects (``df.write``, ``df.writeStream``).

Each row goes through once for each action: unlike a column, nothing is evaluated again for another one, and no
``limit`` stops it in the middle. A failed task and a failed micro-batch are repeated, so each row has an idempotency
key.
"""

from __future__ import annotations

import functools
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aioparallel.batches import Batch, BatchHandler
from aioparallel.engine.work import Work
from aioparallel.errors import ConfigurationError
from aioparallel.handling import Handling, check_choice
from aioparallel.policies import RetryPolicy
from aioparallel.spark.keys import RowLabel, check_hashable, key_function
from aioparallel.spark.limits import calls_per_task, tell_of_limits
from aioparallel.spark.operator import DEFAULT_RETRY
from aioparallel.spark.rows import rows_of
from aioparallel.spark.task import Shipment, check_returns, partition_number
from aioparallel.spark.text_options import TextOptions
from aioparallel.spark.values import Row, fresh

__all__ = ["AioparallelDataSource", "SinkRow", "Written", "register_sink"]

logger = logging.getLogger(__name__)

_ADVICE: Final = 'the option on_error="skip" goes on without it'


def register_sink(spark: SparkSession) -> None:
    """Make ``format("aioparallel")`` known to this session.

    ::

        register_sink(spark)
        df.write.format("aioparallel").options(handler="shop.calls:notify", key="customer").mode("append").save()

    Options, all of them text:

    ``handler``: ``module:function``, an async function of a :class:`SinkRow`; what it returns is not looked at. The
    module is imported on the driver and on the executors.
    ``key``: columns, separated by commas: rows of equal keys within a partition run one after the other.
    ``id``: columns that together identify a row, for its idempotency key.
    ``max_concurrency``: handlers at once in each task (100); or ``job_concurrency`` and ``tasks``.
    ``max_buffered``: rows read ahead in each task (10,000). ``timeout``: seconds for each attempt (none).
    ``attempts``: calls of the handler for a row that fails (3). ``on_error``: ``raise`` (the task fails) or ``skip``.
    ``resources``: ``module:name`` of a dict of functions that make async context managers.
    """
    spark.dataSource.register(AioparallelDataSource)


class SinkRow(dict[str, Any]):
    """A row as a sink's handler gets it."""

    __slots__ = ("_identity",)

    _identity: Callable[[], str] | str

    @property
    def idempotency_key(self) -> str:
        """The same when the row comes again, because a task or a micro-batch was repeated: of the columns of the option
        ``id``; or of ``topic``, ``partition`` and ``offset`` where the row has them; or of the query and its batch (or
        the write), the partition and the row's place in it, which holds where Spark computes them anew in the same
        order, as it does for what comes from a topic without a shuffle. A write in ``foreachBatch`` is a new one each
        time: name ``id`` there."""
        identity = self._identity
        return identity if isinstance(identity, str) else identity()

    def fresh(self) -> SinkRow:
        """A copy, with the same key."""
        copied = SinkRow(fresh(dict(self)))
        copied._identity = self._identity
        return copied


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has done."""

    partition: int
    rows: int
    skipped: int


class AioparallelDataSource(DataSource):
    """``format("aioparallel")``, for writing. See :func:`register_sink`."""

    @classmethod
    def name(cls) -> str:
        """In ``format(...)``."""
        return "aioparallel"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises ConfigurationError for a wrong option, on the driver."""
        if overwrite:
            raise ConfigurationError("mode", "overwrite", 'calls cannot be taken back: use mode("append")')
        return _BatchWriter(_Plan.of(self.options, schema), f"write-{uuid.uuid4().hex}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        """Raises ConfigurationError for a wrong option, on the driver."""
        return _StreamWriter(_Plan.of(self.options, schema))


@dataclass(frozen=True)
class _Plan:
    """What the executors get: names, because a handler given by name is found there again."""

    shipment: Shipment[SinkRow, object]
    keys: tuple[str, ...]
    identity: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> _Plan:
        given = TextOptions(options, schema.fieldNames())
        keys, identity = given.columns("key"), given.columns("id")
        per_task = calls_per_task(given.count("max_concurrency"), given.count("job_concurrency"), given.count("tasks"))
        on_error = given.text("on_error", "raise")
        check_choice("on_error", on_error, ("raise", "skip"))
        handler: Callable[[SinkRow], Awaitable[object]] = given.imported("handler")
        check_returns("handler", handler)
        if isinstance(handler, BatchHandler):
            handler = handler.with_handler(_NoValues(handler))
        check_hashable(schema, keys)
        attempts = given.count("attempts")
        handling = Handling(
            order_by=key_function(keys) if keys else None,
            max_concurrency=per_task,
            max_buffered=given.count("max_buffered") or 10_000,
            handler_timeout=given.seconds("timeout"),
            resources=given.resources(),
        )
        retry = DEFAULT_RETRY if attempts is None else RetryPolicy(max_attempts=attempts)
        work = Work(handler, handling, retry=retry, on_error="skip" if on_error == "skip" else "raise", advice=_ADVICE)
        tell_of_limits(f"sink {given.text('handler', '')}", per_task, given.count("tasks"))
        if not identity and {"topic", "partition", "offset"} <= set(schema.fieldNames()):
            identity = ("topic", "partition", "offset")
        return cls(Shipment.of(work), keys, identity)

    def write(self, batches: Iterable[pa.RecordBatch], unit: str) -> Written:
        """Of a task. ``unit``: what is written as one, named the same when it is repeated."""
        partition = partition_number()
        given = rows_of(batches)
        rows = _Rows(f"{unit}-{partition}", self.identity)
        label = RowLabel(partition, self.keys)
        ended = 0
        for outcomes in self.shipment.run(rows.lists(given.lists()), label, max_buffered=given.rows_ahead):
            ended += len(outcomes)
        return Written(partition, ended, rows.count - ended)


class _NoValues:
    """A batch handler whose values nobody looks at."""

    def __init__(self, handler: Callable[[Any], Awaitable[object]]) -> None:
        self._handler = handler

    async def __call__(self, batch: Batch[SinkRow]) -> list[None]:
        await self._handler(batch)
        return [None] * len(batch)


class _Rows:
    """Rows with their idempotency keys."""

    def __init__(self, prefix: str, identity: tuple[str, ...]) -> None:
        self._prefix = prefix
        self._identity = identity
        self.count = 0

    def lists(self, batches: Iterable[list[Row]]) -> Iterator[list[SinkRow]]:
        for rows in batches:
            made = [SinkRow(row) for row in rows]
            for index, row in enumerate(made, self.count):
                row._identity = functools.partial(self._of, row) if self._identity else f"{self._prefix}-{index}"
            self.count += len(made)
            yield made

    def _of(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row[name] for name in self._identity], default=str, separators=(",", ":"))


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, plan: _Plan, unit: str) -> None:
        self._plan = plan
        self._unit = unit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._plan.write(iterator, self._unit)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(self._unit, messages)


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = batch = "none"
        if context is not None:
            query = context.getLocalProperty("sql.streaming.queryId") or query
            batch = context.getLocalProperty("streaming.sql.batchId") or batch
        return self._plan.write(iterator, f"{query}-{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _tell(f"batch {batchId}", messages)


def _tell(unit: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    rows, skipped = sum(one.rows for one in written), sum(one.skipped for one in written)
    logger.info("%s: %d rows written, %d left out", unit, rows, skipped, extra={"action": "sink_committed"})
