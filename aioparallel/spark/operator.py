"""Async handlers on the rows of a DataFrame: batch or stream, classic or Connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from aioparallel.config.handling import Handling, Middleware, Resource, check_time
from aioparallel.config.policies import RetryPolicy
from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.work import OnError, Work
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.arrow_batches import EMITTED, Results, emitted
from aioparallel.spark.keys import (
    Key,
    RowLabel,
    check_hashable,
    check_key,
    check_readable,
    key_columns,
    key_function,
    missing_column,
    one_lane,
    plain_key,
)
from aioparallel.spark.limits import (
    DEFAULT_RETRY,
    MAX_BUFFERED_BYTES,
    calls_per_task,
    tell_of_limits,
    with_waits_counted,
)
from aioparallel.spark.rows import RowBuilder, columns_of, rows_of
from aioparallel.spark.safe_errors import safe_errors
from aioparallel.spark.task import Shipment, check_returns, partition_number
from aioparallel.spark.unreadable_rows import LaneKey
from aioparallel.spark.values import Row

__all__ = ["DEFAULT_RETRY", "Operator", "parallel_map", "split"]


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

    ``handler``: gets a row as a dict, a copy for each attempt, with times in UTC, and returns one (or a Row, a named
    tuple, a dataclass) with the columns of ``schema``. It is sent to the executors, which need aioparallel installed.
    ``schema``: columns and types of the output, as DDL or StructType.
    ``key``: a column, several, or a plain function of the row. Rows of equal keys within one partition run one after
    the other, in their order; null is no order. See :func:`~aioparallel.spark.keys.repartition_by_key`.
    ``max_concurrency``: handlers running at once **in each task**, 100 by default. Or ``job_concurrency``: in all
    tasks, divided by ``tasks``, the number of them that run at once.
    ``max_buffered``: rows read and not started in each task, at most: how far it sees past a slow key.
    ``max_buffered_bytes``: bytes of memory of the rows that each task has read, and of the results that Spark has not
    taken (64 MiB). At this many it reads no more, and starts no more where they are results; with ``in_order`` only the
    row that the others wait for. Measured as they come, about; passed by the last of them, and by what the handlers
    that run return.
    ``timeout``: seconds for each attempt; then it is cancelled and has failed with HandlerTimeout.
    ``retry``: three attempts by default; None: a single one. An attempt that raises RetryLater is one of them, unless
    the policy has a ``max_wait``.
    ``on_error``: a row that has failed for good fails the task, which names it (``"raise"``); is a row with its error
    (``"emit"``: columns ``value``, ``row``, ``error``, ``attempts``, ``seconds``, see :func:`split`); or is left out,
    with a line in the executor's log (``"skip"``). So is a row whose result does not fit ``schema``.
    ``in_order``: rows come out as they went in, not as they end.
    ``resources``: functions by name that make async context managers, opened once in each Python worker and kept for
    the tasks and micro-batches that follow; the handler reaches them with ``resource("http")``. Spark may
    kill a worker, and then they are never closed: what must be flushed, flush in the handler.
    ``middleware``: async functions of a row and ``call_next``, around each attempt, the first outermost.

    Spark evaluates lazily: two actions on the result run the handlers twice (``persist()`` it), a failed task and a
    failed micro-batch run them again, and so does speculation. Raises ConfigurationError at once for what is wrong.
    """
    check_key(key)
    check_returns("handler", handler)
    if timeout is not None:
        check_time("timeout", timeout)
    per_task = calls_per_task(max_concurrency, job_concurrency, tasks)
    handling = Handling(
        order_by=LaneKey(key_function(key), one_lane),
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
    """What :func:`parallel_map` gives: a function from DataFrame to DataFrame."""

    def __init__(
        self, shipment: Shipment[Row, object], columns: StructType, keys: tuple[str, ...], tasks: int | None
    ) -> None:
        self._shipment = shipment
        self._columns = columns
        self._keys = keys
        self._tasks = tasks
        self._name = getattr(shipment.work.handler, "__qualname__", repr(shipment.work.handler))

    def __call__(self, df: DataFrame) -> DataFrame:
        """The rows after the handler. Raises ConfigurationError where ``df`` has no column that the key needs."""
        if not hasattr(df, "mapInArrow"):
            raise ConfigurationError(
                "df",
                df,
                "must be a DataFrame: df.transform(parallel_map(handler, ...)); for groups, see key",
            )
        given = df.schema
        self.check(given)
        tell_of_limits(f"parallel_map({self._name})", self._shipment.work.handling.max_concurrency, self._tasks)
        names = given.fieldNames()
        if _are_hard(names):
            df = df.toDF(*[f"c{number}" for number in range(len(names))])
        return df.mapInArrow(self.on_executor(given), self.output(given))

    def check(self, given: StructType) -> None:
        """Raises ConfigurationError for columns that it cannot run on."""
        names = given.fieldNames()
        if not names:
            raise ConfigurationError("df", "no columns", "has nothing that a handler could get")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigurationError("df", twice, "stands twice among its columns, and a row has each name once")
        if missing := [name for name in self._keys if name not in names]:
            raise ConfigurationError("key", missing[0], missing_column(missing[0], names))
        check_readable(given)
        check_hashable(given, self._keys)

    def output(self, given: StructType) -> StructType:
        """The columns that come out where ``given`` go in."""
        if self._shipment.work.on_error != "emit":
            return self._columns
        return StructType([StructField("value", self._columns), StructField("row", given), *EMITTED])

    def on_executor(self, given: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """What a task does with the batches of its partition."""
        keys, columns, output = self._keys, self._columns, self.output(given)
        key = plain_key(given, keys)
        shipment = self._shipment if key is None else self._shipment.with_key(key)
        on_error = shipment.work.on_error
        names = given.fieldNames()

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            builder = RowBuilder(output, "row" if on_error == "emit" else None)

            def build(outcomes: list[Outcome[Row, object]]) -> pa.RecordBatch:
                if on_error != "emit":
                    return builder.build([one.value for one in outcomes])
                rows = emitted(outcomes)
                for row, outcome in zip(rows, outcomes, strict=True):
                    row["row"] = None if outcome.error is None else outcome.item
                    if outcome.error is None and outcome.value is None:
                        raise TypeError("no row")  # one that is null would look like one that has failed
                return builder.build(rows)

            label = RowLabel(partition_number(), keys)
            results = Results(build, RowBuilder(columns).misfit, on_error, label)
            if _are_hard(names):  # they have others on their way
                batches = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
            with safe_errors():
                yield from results.of(shipment.run(rows_of(batches).lists(), label))

        return run

    def __repr__(self) -> str:
        return f"<parallel_map of {self._name} for DataFrame.transform>"


def _are_hard(names: Sequence[str]) -> bool:
    """Whether PySpark's ``mapInArrow``, which asks for each column by its name, would find another one, or none."""
    is_hard = any("." in name or "`" in name or name == "*" for name in names)
    return is_hard or len({name.lower() for name in names}) < len(names)


def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The rows that have succeeded, and those that have failed, of ``parallel_map(..., on_error="emit")``.

    The first has the handler's columns. The second has ``row``, the input, ``error``, ``attempts`` and ``seconds``:
    ``failed.select("row.*")`` can be run again. Each of them evaluates ``df``, and so runs the handlers: ``persist()``
    it before, or write it and read it again.
    """
    failed = df["error"].isNotNull()
    return (
        df.where(~failed).select("value.*"),
        df.where(failed).select("row", "error", "attempts", "seconds"),
    )
