"""Async handlers on the rows of a DataFrame: batch or stream, classic or Connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from aioparallel.config.handling import Handling, Middleware, Resource, check_time
from aioparallel.config.policies import RetryPolicy
from aioparallel.config.unknown_options import refuses_others
from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.work import OnError, Work
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.arrow_batches import EMITTED, Results, emitted
from aioparallel.spark.builders import StructBuilder
from aioparallel.spark.keys import (
    Key,
    LaneKey,
    RowLabel,
    check_hashable,
    check_key,
    key_columns,
    key_function,
    missing_column,
    plain_key,
)
from aioparallel.spark.limits import (
    DEFAULT_RETRY,
    MAX_BUFFERED_BYTES,
    calls_per_task,
    log_limits,
    with_waits_counted,
)
from aioparallel.spark.rows import rows_of
from aioparallel.spark.safe_errors import safe_errors
from aioparallel.spark.schemas import check_readable, columns_of
from aioparallel.spark.task import Shipment, check_returns, partition_number
from aioparallel.spark.values import Row
from aioparallel.spark.workers import WorkerNeeds

__all__ = ["DEFAULT_RETRY", "Operator", "parallel_map", "split"]


@refuses_others
def parallel_map(
    handler: Callable[[Row], Awaitable[object]],
    *,
    schema: str | StructType,
    key: Key | None = None,
    max_concurrency: int | None = None,
    job_concurrency: int | None = None,
    tasks: int | None = None,
    max_buffered: int = 10_000,
    max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    timeout: float | None = None,
    retry: RetryPolicy | None = DEFAULT_RETRY,
    on_error: OnError = "raise",
    in_order: bool = False,
    resources: Mapping[str, Resource] | None = None,
    middleware: Sequence[Middleware] = (),
) -> Operator:
    """Run the async function ``handler`` on each row, many at once, in order of key; for ``df.transform(...)``.

    ::

        enriched = flights.transform(parallel_map(enrich, schema="tailnum string, weather string", key="tailnum"))

    ``handler``: gets a row as a dict with times in UTC, a copy for each attempt. Returns a dict (or a Row, a named
    tuple, a dataclass) with the columns of ``schema``. It is sent to the executors, which need aioparallel installed.
    ``schema``: columns and types of the output, as DDL or StructType.
    ``key``: a column, several columns, or a plain function of the row. Rows with equal keys in one partition run one
    after the other, in their order. A null key has no order. See
    :func:`~aioparallel.spark.keys.repartition_by_key`.
    ``max_concurrency``: handlers that run at once **in each task**, 100 by default. Or ``job_concurrency``: in all
    tasks; it is divided by ``tasks``, the number of tasks that run at once.
    ``max_buffered``: most rows that each task has read and not started: how far it looks past a slow key.
    ``max_buffered_bytes``: memory of the rows that each task has read, and of the results that Spark has not taken
    (64 MiB). At this bound it reads no rows. If results alone reach it, it starts no rows; with ``in_order`` only the
    row that the others wait for. Sizes are approximate. The last row read, and the results of running handlers, may
    exceed the bound.
    ``timeout``: seconds for each attempt. Then it is cancelled and fails with HandlerTimeout.
    ``retry``: three attempts by default; None: one. An attempt that raises RetryLater counts, unless the policy has a
    ``max_wait``.
    ``on_error``: a row that has failed for good fails the task, which names the row (``"raise"``); or is a row with its
    error (``"emit"``: columns ``value``, ``row``, ``error``, ``attempts``, ``seconds``, see :func:`split`); or is left
    out, with a line in the executor's log (``"skip"``). The same applies to a row whose result does not fit ``schema``.
    ``in_order``: rows come out in the order of the input, not as they end.
    ``resources``: functions, by name, that return async context managers. They are opened once in each Python worker
    and kept for later tasks and micro-batches; the handler gets one with ``resource("http")``. Spark may kill a worker,
    and then they are never closed: flush in the handler.
    ``middleware``: async functions of a row and ``call_next``, called around each attempt, the first one outermost.

    Spark evaluates lazily. Two actions on the result run the handlers twice: ``persist()`` it. A failed task or
    micro-batch runs them again, and so does speculation. Raises ConfigurationError at once for a wrong option.
    """
    check_key(key)
    check_returns("handler", handler)
    if timeout is not None:
        check_time("timeout", timeout)
    per_task = calls_per_task(max_concurrency, job_concurrency, tasks)
    handling = Handling(
        order_by=LaneKey(key_function(key)),
        max_concurrency=per_task,
        max_buffered=max_buffered,
        handler_timeout=timeout,
        middleware=middleware,
        resources=resources or {},
    )
    work = Work(
        handler,
        handling,
        retry=with_waits_counted(retry),
        on_error=on_error,
        in_order=in_order,
        max_buffered_bytes=max_buffered_bytes,
    )
    return Operator(Shipment.of(work), columns_of("schema", schema), key_columns(key), tasks)


class Operator:
    """The result of :func:`parallel_map`: a function from DataFrame to DataFrame."""

    def __init__(
        self, shipment: Shipment[Row, object], columns: StructType, keys: tuple[str, ...], tasks: int | None
    ) -> None:
        self._shipment = shipment
        self._columns = columns
        self._keys = keys
        self._tasks = tasks
        self._name = getattr(shipment.work.handler, "__qualname__", repr(shipment.work.handler))

    def __call__(self, df: DataFrame) -> DataFrame:
        """The handler's results for the rows of ``df``. Raises ConfigurationError for columns that it cannot run on."""
        if not hasattr(df, "mapInArrow"):
            raise ConfigurationError(
                "df", df, "must be a DataFrame: df.transform(parallel_map(handler, ...)); for groups, see key"
            )
        given = df.schema
        self.check(given)
        log_limits(f"parallel_map({self._name})", self._shipment.work.handling.max_concurrency, self._tasks)
        names = given.fieldNames()
        if _are_hard(names):
            df = df.toDF(*[f"c{number}" for number in range(len(names))])
        return df.mapInArrow(self.on_executor(given), self.output(given))

    def check(self, given: StructType) -> None:
        """Raises ConfigurationError for columns that it cannot run on."""
        names = given.fieldNames()
        if not names:
            raise ConfigurationError("df", "no columns", "must have a column: the handler's row would be empty")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError("df", twice, "is the name of two columns, and a row has each name once")
        if missing := [name for name in self._keys if name not in names]:
            raise ConfigurationError("key", missing[0], missing_column(missing[0], names))
        check_readable(given)
        check_hashable(given, self._keys)

    def output(self, given: StructType) -> StructType:
        """The columns of the output for the columns ``given``."""
        if self._shipment.work.on_error != "emit":
            return self._columns
        return StructType([StructField("value", self._columns), StructField("row", given), *EMITTED])

    def on_executor(self, given: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function that a task runs on the batches of its partition."""
        columns, output = self._columns, self.output(given)
        key = plain_key(given, self._keys)
        shipment = self._shipment if key is None else self._shipment.with_key(key)
        on_error = shipment.work.on_error
        names, keys = given.fieldNames(), self._keys

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            emits = on_error == "emit"
            values, rows = StructBuilder(columns), StructBuilder(output, given="row" if emits else False)

            def build(outcomes: list[Outcome[Row, object]]) -> pa.RecordBatch:
                if not emits:
                    return values.batch([one.value for one in outcomes])
                results = emitted(outcomes)
                for result, outcome in zip(results, outcomes, strict=True):
                    result["row"] = None if outcome.error is None else outcome.item
                    if outcome.error is None and outcome.value is None:
                        raise TypeError("no row")  # null means a failure
                return rows.batch(results)

            def misfit(value: object) -> str | None:
                return " is None, which is no row" if value is None else values.misfit(value)

            label = RowLabel(partition_number(), keys)
            if _are_hard(names):  # renamed for mapInArrow
                batches = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
            with safe_errors():
                yield from Results(build, misfit, on_error, label).of(shipment.run(rows_of(batches), label))

        run.worker_needs = WorkerNeeds()  # type: ignore[attr-defined]
        return run

    def __repr__(self) -> str:
        return f"<parallel_map of {self._name} for DataFrame.transform>"


def _are_hard(names: Sequence[str]) -> bool:
    """Whether PySpark's ``mapInArrow``, which resolves each column by its name, would find another one, or none."""
    is_hard = any("." in name or "`" in name or name == "*" for name in names)
    return is_hard or len({name.lower() for name in names}) < len(names)


@refuses_others
def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows that succeeded, and those that failed, of ``parallel_map(..., on_error="emit")``.

    The first frame has the handler's columns. The second has ``row`` (the input), ``error``, ``attempts`` and
    ``seconds``; ``failed.select("row.*")`` can be run again. Each frame evaluates ``df`` and so runs the handlers:
    ``persist()`` it before, or write it and read it again.
    """
    failed = df["error"].isNotNull()
    return (
        df.where(~failed).select("value.*"),
        df.where(failed).select("row", "error", "attempts", "seconds"),
    )
