"""Arrow batches to rows and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from aioparallel.errors import ConfigurationError
from aioparallel.spark.builders import StructBuilder
from aioparallel.spark.ddl import read_fields, read_type
from aioparallel.spark.values import Row

__all__ = ["RowBuilder", "columns_of", "lists_of_rows", "type_of"]

# Rows made of one Arrow batch at a time: Arrow makes them without letting other threads run, 0.3 us each.
_AT_ONCE: Final = 1_000


def columns_of(option: str, schema: str | StructType) -> StructType:
    """The columns that ``schema`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(schema, str):
        return read_fields(option, schema)
    given: object = schema
    if not isinstance(given, StructType) or not given.fields:
        raise ConfigurationError(option, schema, 'must be columns: "tailnum string, delay int", or a StructType')
    return given


def type_of(option: str, returns: str | DataType) -> DataType:
    """The type that ``returns`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(returns, str):
        return read_type(option, returns)
    if not isinstance(returns, DataType):
        raise ConfigurationError(option, returns, 'must be a type: "string", "struct<status int, body string>", ...')
    return returns


def lists_of_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
    """Rows of Arrow batches, some at a time."""
    for batch in batches:
        for first in range(0, batch.num_rows, _AT_ONCE):
            yield batch.slice(first, _AT_ONCE).to_pylist()


class RowBuilder:
    """Arrow batches of the declared columns."""

    def __init__(self, columns: StructType) -> None:
        self._rows = StructBuilder(columns)

    def build(self, values: Sequence[object]) -> pa.RecordBatch:
        """All of them. Raises one of several exceptions if one does not fit; :meth:`misfit` says which, and why."""
        return pa.RecordBatch.from_arrays(self._rows.columns(values), schema=self._rows.schema)

    def misfit(self, value: object) -> str | None:
        """What is wrong with one value; None: it fits."""
        wrong: Any = self._rows.misfit(value) if value is not None else " is None, which is no row"
        return wrong and _as_sentence(wrong)


def _as_sentence(wrong: str) -> str:
    """Of what a builder says, which begins with where in the value it is."""
    return wrong[1:] if wrong[0] == "." else f"it{wrong}"
