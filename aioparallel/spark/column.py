"""Async functions as columns, for ``select`` and ``withColumn``."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StructField, StructType

from aioparallel.config.callables import is_async
from aioparallel.config.handling import Handling, Middleware, Resource, check_choice, check_time
from aioparallel.config.option_docs import describes_like
from aioparallel.config.policies import RetryPolicy
from aioparallel.config.unknown_options import refuses_others
from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.work import Work
from aioparallel.handlers.batches import BatchHandler
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.arrow_batches import EMITTED, Results, emitted
from aioparallel.spark.builders import builder_of
from aioparallel.spark.keys import LaneKey
from aioparallel.spark.limits import (
    DEFAULT_RETRY,
    MAX_BUFFERED_BYTES,
    calls_per_task,
    log_limits,
    with_waits_counted,
)
from aioparallel.spark.operator import parallel_map
from aioparallel.spark.rows import arguments_of
from aioparallel.spark.safe_errors import safe_errors
from aioparallel.spark.schemas import type_of
from aioparallel.spark.task import Shipment, check_returns, partition_number
from aioparallel.spark.workers import WorkerNeeds

__all__ = ["AsyncColumn", "async_udf"]

OnError = Literal["raise", "emit", "null"]
_ADVICE: Final = 'on_error="emit" or "null" goes on without it'
Arguments = tuple[Any, ...]


@refuses_others
@describes_like(parallel_map)
def async_udf(
    *,
    returns: str | DataType,
    key: str | Callable[..., Hashable] | None = None,
    max_concurrency: int | None = None,
    job_concurrency: int | None = None,
    tasks: int | None = None,
    max_buffered: int = 10_000,
    max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    timeout: float | None = None,
    retry: RetryPolicy | None = DEFAULT_RETRY,
    on_error: OnError = "raise",
    resources: Mapping[str, Resource] | None = None,
    middleware: Sequence[Middleware] = (),
) -> Callable[[Callable[..., Awaitable[object]]], AsyncColumn]:
    """Turn an async function of values into a function of columns.

    ::

        @async_udf(returns="struct<status int, body string>", max_concurrency=100)
        async def fetch(url: str) -> dict[str, object]: ...

        pages = df.withColumn("page", fetch("url"))

    ``returns``: the type of the new column, as DDL or a Spark type. For a struct the function returns a dict (or a Row,
    a named tuple, a dataclass).
    ``key``: the name of one of the function's parameters, or a plain function of the same arguments. Calls with equal
    keys run one after the other, in the order of the rows of a partition.
    ``on_error``: a call that has failed for good fails the task, which names the row (``"raise"``); or the column is a
    struct of ``value``, ``error``, ``attempts`` and ``seconds`` (``"emit"``); or it is null, with a line in the
    executor's log (``"null"``).

    The other parameters are those of :func:`~aioparallel.spark.operator.parallel_map`, with a call in place of a row.
    Middleware gets a tuple of the arguments.

    Results are in the order of the input. Calls run ahead over the whole partition, not only within one Arrow batch.
    Query functions of declared pipelines accept this form. Raises ConfigurationError at once for a wrong option.
    """
    kind = type_of("returns", returns)
    check_choice("on_error", on_error, ("raise", "emit", "null"))
    if timeout is not None:
        check_time("timeout", timeout)
    per_task = calls_per_task(max_concurrency, job_concurrency, tasks)

    def decorate(function: Callable[..., Awaitable[object]]) -> AsyncColumn:
        key_number = _number_of(key, function) if isinstance(key, str) else None
        handling = Handling(
            order_by=LaneKey(_key_function(key) if key_number is None else itemgetter(key_number)),
            max_concurrency=per_task,
            max_buffered=max_buffered,
            handler_timeout=timeout,
            middleware=middleware,
            resources=resources or {},
        )
        # With "null", too, errors are outcomes: they become null when the column is built.
        work: Work[Arguments, object] = Work(
            _Spread(function),
            handling,
            retry=with_waits_counted(retry),
            on_error="raise" if on_error == "raise" else "emit",
            in_order=True,
            max_buffered_bytes=max_buffered_bytes,
            advice=_ADVICE,
        )
        return AsyncColumn(function, work, kind, on_error, tasks, key_number)

    return decorate


def _number_of(key: str, function: Callable[..., Awaitable[object]]) -> int:
    names = list(inspect.signature(function).parameters)
    if key not in names:
        raise ConfigurationError("key", key, f"is no parameter of the function; it has {', '.join(names) or 'none'}")
    return names.index(key)


def _key_function(key: object) -> Callable[[Arguments], Hashable] | None:
    if key is None:
        return None
    if not callable(key) or is_async(key):
        raise ConfigurationError("key", key, "must be a parameter's name, or a plain function of the same arguments")
    return functools.partial(_apply, key)


def _apply(function: Callable[..., Hashable], arguments: Arguments) -> Hashable:
    return function(*arguments)


class _Spread:
    """Calls a function with the values of a tuple."""

    def __init__(self, function: Callable[..., Awaitable[object]]) -> None:
        if not is_async(function):
            raise ConfigurationError("async_udf", function, "must decorate an `async def` function of column values")
        if isinstance(function, BatchHandler):
            raise ConfigurationError(
                "async_udf", function, "is for calls of single rows; batches of rows are for parallel_map(batches(...))"
            )
        check_returns("async_udf", function)
        self._function = function

    def __reduce__(self) -> Any:
        """By name if the function has one, so that each worker has the module's variables only once."""
        module, name = self._function.__module__, getattr(self._function, "__qualname__", "")
        found = None if module == "__main__" else _named(module, name)
        return (_spread_named, (module, name)) if found is self._function else (_Spread, (self._function,))

    def __repr__(self) -> str:
        return repr(self._function)

    async def __call__(self, arguments: Arguments) -> object:
        return await self._function(*arguments)


def _named(module: str, name: str) -> Callable[..., Awaitable[object]] | None:
    """The function of the column of this name."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found.function if isinstance(found, AsyncColumn) else None


def _spread_named(module: str, name: str) -> _Spread:
    importlib.import_module(module)
    function = _named(module, name)
    if function is None:
        raise ConfigurationError("async_udf", f"{module}.{name}", "is no async_udf on this executor: another version?")
    return _Spread(function)


def _name_of(column: Column | str, parameter: str) -> str:
    """The column as it is written; the name of the parameter if Spark would write Java's objects."""
    text = column if isinstance(column, str) else str(column).removeprefix("Column<'").removesuffix("'>")
    return parameter if "columnnodeexpression(" in text else text


def _comparable(name: str, key: Column) -> Column:
    """The same column. Spark raises an error if it is text with a collation: no schema is known yet."""
    refusal = ConfigurationError(
        "key",
        name,
        "gets text with a collation: texts that are equal by it would not be one key; give F.collate(F.lower(...), "
        "'UTF8_BINARY')",
    )
    # typeof() is a constant, so the optimizer removes all of this.
    return F.when(F.typeof(key).rlike("collate (?!UTF8_BINARY$)"), F.raise_error(F.lit(str(refusal)))).otherwise(key)


class AsyncColumn:
    """The result of :func:`async_udf`: call it with columns, or their names. ``function``: the async function."""

    def __init__(
        self,
        function: Callable[..., Awaitable[object]],
        work: Work[Arguments, object],
        kind: DataType,
        on_error: OnError,
        tasks: int | None,
        key_number: int | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._name = getattr(function, "__qualname__", repr(function))
        self._work = work
        self._kind = kind
        self._on_error = on_error
        self._tasks = tasks
        self._key_number = key_number

    @property
    def returns(self) -> DataType:
        """The type of the column."""
        if self._on_error != "emit":
            return self._kind
        return StructType([StructField("value", self._kind), *EMITTED])

    def __call__(self, *columns: Column | str) -> Column:
        """The column of its results. Raises ConfigurationError for a wrong number of columns."""
        if not columns:
            raise ConfigurationError(self._name, columns, "needs at least one column")
        signature = inspect.signature(self.function)
        try:
            signature.bind(*columns)
        except TypeError as error:
            raise ConfigurationError(self._name, columns, f"does not fit its parameters: {error}") from None
        key = self._key_number
        if key is not None and key >= len(columns):
            raise ConfigurationError("key", self._name, f"its parameter number {key + 1} gets no column")
        log_limits(f"async_udf({self._name})", self._work.handling.max_concurrency, self._tasks)
        run = self.on_executor()
        # Spark reads the types of its input and output from the annotations.
        given = pa.Array if len(columns) == 1 else tuple[pa.Array, ...]
        run.__annotations__ = {"arrays": Iterator[given], "return": Iterator[pa.Array]}  # type: ignore[valid-type]
        made: Any = arrow_udf(run, self.returns)  # type: ignore[call-overload]
        # Nondeterministic: otherwise the optimizer may evaluate it twice, or for rows that a filter removes later.
        made = made.asNondeterministic()
        arguments = [F.col(one) if isinstance(one, str) else one for one in columns]
        if key is None:
            return cast("Column", made(*arguments))
        arguments[key] = _comparable(self._name, arguments[key])
        # Named as without the comparison.
        parameters = [*signature.parameters]
        names = map(_name_of, columns, itertools.chain(parameters, itertools.repeat(parameters[-1])))
        column: Column = made(*arguments)
        return column.alias(f"{run.__name__}({', '.join(names)})")

    def on_executor(self) -> Callable[[Iterator[Any]], Iterator[pa.Array]]:
        """The function that a task runs on the arrays of its partition, or on tuples of arrays."""
        # Pickled only here: when the function was decorated, its module had not been executed to the end.
        shipment, kind, returns, on_error = Shipment.of(self._work), self._kind, self.returns, self._on_error
        key = self._key_number
        name = None if key is None else [*inspect.signature(self.function).parameters][key]

        def run(arrays: Iterator[Any]) -> Iterator[pa.Array]:
            builder, values = builder_of(returns), builder_of(kind)

            def build(outcomes: list[Outcome[Any, object]]) -> pa.Array:
                if on_error != "emit":
                    return builder.build([one.value for one in outcomes])
                return builder.build(emitted(outcomes))

            def misfit(value: object) -> str | None:
                return None if value is None else values.misfit(value)

            number = partition_number()

            def label(arguments: object, index: int) -> str:
                place = f"row {index} of partition {number}"
                if key is None or not isinstance(arguments, tuple) or key >= len(arguments):
                    return place
                return f"{place} ({name}={arguments[key]!r:.60})"

            with safe_errors():
                yield from Results(build, misfit, on_error, label).of(shipment.run(arguments_of(arrays), label))

        run.__name__ = self._name.rpartition(".")[2]  # the name of the column begins with it
        run.worker_needs = WorkerNeeds()  # type: ignore[attr-defined]
        return run

    def __repr__(self) -> str:
        return f"<async_udf {self._name} to {self._kind.simpleString()}>"
