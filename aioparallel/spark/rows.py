"""Rows as handlers see them, and Arrow batches as Spark wants them.

Spark takes what a Python worker sends it by position and never looks whether it fits: a wrong type fails far away,
naming no column, and a field with a misspelt name is null. So what handlers return is built into the declared schema
here, and what does not fit is named with its column.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from aioparallel.errors import ConfigurationError
from aioparallel.spark.ddl import read_fields, read_type

__all__ = ["ColumnBuilder", "Row", "RowBuilder", "columns_of", "lists_of_rows", "type_of"]

Row = dict[str, Any]
"""A row as a handler gets it: values by the names of columns."""

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


class ColumnBuilder:
    """Arrow arrays of one Spark type. ``name``: of the column, in messages."""

    def __init__(self, name: str, kind: DataType, *, nullable: bool = True) -> None:
        self.name = name
        self._kind = kind
        self.arrow_type = to_arrow_type(kind, timezone="UTC")
        self._nullable = nullable
        # What pyarrow fills up with nulls or leaves out in a struct would be a misspelt name.
        self._rows = RowBuilder(kind) if isinstance(kind, StructType) else None

    def build(self, values: Sequence[object]) -> pa.Array:
        """Raises TypeError, ValueError or an ArrowException if one of them does not fit; see :meth:`misfit`."""
        if not self._nullable and None in values:
            raise ValueError("null")
        if self._rows is None:
            return pa.array(values, self.arrow_type)
        return self._rows.structs(values)

    def misfit(self, value: object) -> str | None:
        """What is wrong with it; None: it fits."""
        if value is None:
            return None if self._nullable else f"{self.name} is null, and is declared NOT NULL"
        if self._rows is not None and (wrong := self._rows.misfit(value)) is not None:
            return f"{self.name}: {wrong}" if self.name else wrong
        try:
            self.build([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            said = str(error).splitlines()[0]
            found = f"{value!r:.80} ({type(value).__name__})"
            found = f"{self.name} is {found}, which" if self.name else found
            return f"{found} is no {self._kind.simpleString()}: {said}"
        return None


class RowBuilder:
    """Arrow batches of the declared columns, from what handlers return: mappings, Spark's rows, named tuples,
    dataclasses."""

    def __init__(self, columns: StructType) -> None:
        self._names = columns.fieldNames()
        self._known = frozenset(self._names)
        self._columns = [ColumnBuilder(field.name, field.dataType, nullable=field.nullable) for field in columns.fields]
        self.schema = pa.schema(
            [
                pa.field(column.name, column.arrow_type, nullable=field.nullable)
                for column, field in zip(self._columns, columns.fields, strict=True)
            ]
        )

    def build(self, values: Sequence[object]) -> pa.RecordBatch:
        """All of them. Raises one of several exceptions if one does not fit; :meth:`misfit` says which, and why."""
        return pa.RecordBatch.from_arrays(self._arrays(values), schema=self.schema)

    def structs(self, values: Sequence[object]) -> pa.Array:
        """As one array of structs, with nulls where a value is None."""
        if None not in values:
            return pa.StructArray.from_arrays(self._arrays(values), fields=list(self.schema))
        there = pa.StructArray.from_arrays(
            self._arrays([value for value in values if value is not None]), fields=list(self.schema)
        )
        numbers = itertools.count()
        return there.take(pa.array([None if value is None else next(numbers) for value in values], pa.int64()))

    def _arrays(self, values: Sequence[object]) -> list[pa.Array]:
        rows = [value if type(value) is dict else as_mapping(value) for value in values]
        width = len(self._names)
        if any(len(row) != width for row in rows):
            raise ValueError("more fields than columns")
        return [column.build([row[column.name] for row in rows]) for column in self._columns]

    def misfit(self, value: object) -> str | None:
        """What is wrong with one value; None: it fits."""
        try:
            row = as_mapping(value)
        except TypeError as error:
            return str(error)
        if missing := [name for name in self._names if name not in row]:
            found = ", ".join(map(repr, row)) or "no fields"
            return f"no {missing[0]!r} is in it (None is null); it has {found}"
        if more := [name for name in row if name not in self._known]:
            return f"{more[0]!r} is no declared column; these are {', '.join(map(repr, self._names))}"
        return next((wrong for column in self._columns if (wrong := column.misfit(row[column.name])) is not None), None)


def as_mapping(value: object) -> Mapping[str, Any]:
    """The fields of a row by name. Raises TypeError for what has none."""
    if isinstance(value, Mapping):
        return value
    fields = getattr(value, "__fields__", None)  # pyspark.sql.Row
    if isinstance(value, tuple) and fields is None:
        fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return dict(zip(fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"a row is a dict (or a Row, a named tuple, a dataclass) with the declared columns, found {value!r:.80} "
        f"({type(value).__name__})"
    )
