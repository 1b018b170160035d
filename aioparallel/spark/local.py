"""Runs a handler like a task, without Spark and without a JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.column import AsyncColumn
from aioparallel.spark.operator import Operator
from aioparallel.spark.rows import values_of
from aioparallel.spark.schemas import columns_of

__all__ = ["run_locally"]

# Rows in an Arrow batch: few, so that the rows of a test make several batches.
_BATCH: Final = 100


@refuses_others
def run_locally(
    tried: Operator | AsyncColumn, rows: Iterable[Any], *, schema: str | StructType | None = None
) -> list[Any]:
    """The results of a task with these rows as its partition, for tests of handlers.

    ::

        operator = parallel_map(enrich, schema="tailnum string, weather string")
        assert run_locally(operator, [{"tailnum": "N1"}]) == [{"tailnum": "N1", "weather": "fair"}]

    For :func:`~aioparallel.spark.operator.parallel_map` rows and results are dicts. For
    :func:`~aioparallel.spark.column.async_udf` a row is a tuple of arguments or a single argument, and results are
    values. Rows are converted to Arrow and back, as in Spark: ``schema`` gives their types, or they are inferred.
    Resources of handlers stay open in this process for the next call. Raises the errors that a task would raise.
    """
    given: object = tried
    if isinstance(given, AsyncColumn):
        return _column(given, rows)
    if not isinstance(given, Operator):
        raise ConfigurationError(
            "tried", given, "must be the result of parallel_map() or async_udf() of aioparallel.spark"
        )
    if hasattr(rows, "mapInArrow"):
        raise ConfigurationError("rows", rows, "must be dicts: for a DataFrame, [row.asDict() for row in df.collect()]")
    table = _table([dict(row) for row in rows], None if schema is None else columns_of("schema", schema))
    columns = from_arrow_schema(table.schema)
    given.check(columns)
    output = given.on_executor(columns)(table.to_batches(_BATCH))
    return [row for batch in output for row in values_of(batch)]


def _table(rows: list[dict[str, Any]], schema: StructType | None) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row)) if schema is None else schema.fieldNames()
    for number, row in enumerate(rows):
        if more := [name for name in row if name not in names]:
            raise ConfigurationError("rows", row, f"row {number} has {more[0]!r}, which is not in the schema")
    filled = [{name: row.get(name) for name in names} for row in rows]
    return pa.Table.from_pylist(filled, None if schema is None else to_arrow_schema(schema, timezone="UTC"))


def _column(column: AsyncColumn, rows: Iterable[Any]) -> list[Any]:
    calls = [row if isinstance(row, tuple) else (row,) for row in rows]
    arguments = [
        tuple([pa.array(values) for values in zip(*calls[start : start + _BATCH], strict=True)])
        for start in range(0, len(calls), _BATCH)
    ]
    return [value for array in column.on_executor()(iter(arguments)) for value in values_of(array)]
