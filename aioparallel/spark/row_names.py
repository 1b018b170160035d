"""What a row is called, the same whenever it comes again: idempotency keys of the sink, headers of records.

A place in Kafka (topic, partition, offset) is no name of a row: after ``explode`` many rows have the same. A digest of
the row's values goes with it, and where rows are equal in all of them, the place among these. Nothing else is the same
when a batch is repeated: Spark hands the partitions of a topic to its tasks in another order after a restart.

Where values differ from run to run (``now()``, ``rand()``, the answer of a service) so does the name: a repeated row is
then handled again. It is never taken for another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from aioparallel.errors import ConfigurationError, Reject
from aioparallel.spark.text_options import TextOptions
from aioparallel.spark.values import Row

__all__ = ["TOPIC_COLUMNS", "Naming", "RowNames", "digest_of_row", "has_place", "record_digest", "with_places"]

TOPIC_COLUMNS: Final[dict[str, DataType]] = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
"""Where a record stands in Kafka, as :func:`~aioparallel.spark.topics.read_topic` gives it. Columns of these names with
other types are something else."""

_NONE: Final = "none"
_WINDOW: Final = 50_000
"""Rows among which equal ones are told apart, at least. 100 bytes each are kept of twice as many."""
_DIGEST_BYTES: Final = 16
_HEADER_DIGITS: Final = 16
"""Of the digest in a header, which tells apart the records made of one."""


def has_place(schema: StructType) -> bool:
    """Whether its rows say where their record stands in Kafka."""
    types = {field.name: field.dataType for field in schema}
    return all(types.get(name) == kind for name, kind in TOPIC_COLUMNS.items())


@dataclass(frozen=True)
class Naming:
    """How the rows of a sink are named. Made on the driver."""

    by: Literal["id", "topic", "none"]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: TextOptions, schema: StructType) -> Naming:
        """What the option ``id`` says, or the columns of the rows. Raises ConfigurationError where neither does."""
        if options.text("id", "").strip() == _NONE:
            if _NONE in schema.fieldNames():
                raise ConfigurationError("id", _NONE, "means no keys, and is a column, too: rename the column")
            return cls("none")
        if columns := options.columns("id"):
            return cls("id", columns)
        if has_place(schema):
            return cls("topic", tuple(TOPIC_COLUMNS))
        wanted = ", ".join(f"{name} {kind.simpleString()}" for name, kind in TOPIC_COLUMNS.items())
        found = [f"{field.name} {field.dataType.simpleString()}" for field in schema if field.name in TOPIC_COLUMNS]
        raise ConfigurationError(
            "id",
            None,
            'is needed, since nothing names these rows when a batch is repeated: .option("id", "order") with the '
            f"columns that identify a row; or keep the columns {wanted} of read_topic (there is "
            f'{", ".join(found) or "none of them"}); or .option("id", "none") for a service that needs no keys',
        )


class RowNames:
    """Names of the rows of one task, in the order in which they come."""

    def __init__(self, naming: Naming) -> None:
        self._columns = naming.columns
        self._name: Callable[[Row], str | None] = {"id": self._by_id, "topic": self._by_topic, "none": _nameless}[
            naming.by
        ]
        self._places = _Places()

    def name(self, row: Row) -> str | Reject | None:
        """The next row's. None: there are no names. Reject: the row has none, and this is why."""
        for column in self._columns:
            if row[column] is None:
                return Reject(
                    f"column {column} is NULL, so nothing names this row when it comes again: leave such rows out, or "
                    f'name columns that are never NULL in the option "id" (here: {", ".join(self._columns)})'
                )
        return self._name(row)

    def _by_id(self, row: Row) -> str:
        return _encoded([row[name] for name in self._columns])

    def _by_topic(self, row: Row) -> str:
        digest = digest_of_row(row)
        name = f"{row['topic']}-{row['partition']}-{row['offset']}-{digest.hex()}"
        place = self._places.next(digest)
        return f"{name}-{place}" if place else name


class _Places:
    """How many like it came before, of the last ones."""

    def __init__(self) -> None:
        self._newer: dict[Hashable, int] = {}
        self._older: dict[Hashable, int] = {}

    def next(self, name: Hashable) -> int:
        """Of one that comes now; 0 for the first."""
        place = self._newer.get(name)
        if place is None:
            if len(self._newer) >= _WINDOW:
                self._older, self._newer = self._newer, {}
            place = self._older.get(name, 0)
        self._newer[name] = place + 1
        return place


def digest_of_row(row: Row) -> bytes:
    """Of all its values, in the order of its columns: the same in each process, on each platform."""
    # A text of theirs may hold lone surrogates: JSON writes them as ASCII.
    return blake2b(_encoded([*row.values()]).encode("ascii"), digest_size=_DIGEST_BYTES).digest()


def _nameless(row: Row) -> None:
    """By the option ``id="none"``."""


# Maps in the order of their keys; what JSON does not know (times, decimals, bytes) as its str(), which is one text for
# each value of a type. The types are those of the columns: no two values of one column are told apart by them.
_JSON: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=str)


def _encoded(values: list[Any]) -> str:
    try:
        return _JSON.encode(values)
    except TypeError:  # a map whose keys are no texts and no numbers
        return _JSON.encode(_with_lists(values))


def _with_lists(value: Any) -> Any:
    """Maps as lists of pairs, in the order of their keys as text."""
    if isinstance(value, dict):
        pairs = [[_with_lists(key), _with_lists(one)] for key, one in value.items()]
        return sorted(pairs, key=lambda pair: _JSON.encode(pair[0]))
    if isinstance(value, list | tuple):
        return [_with_lists(one) for one in value]
    return value


def record_digest(columns: Sequence[Column], headers: Column | None) -> Column:
    """The same idea for a record that Spark writes, as a column: of ``columns``, texts or bytes, and of ``headers``.

    Equal records have equal digests: an expression of Spark does not know their places. See :func:`with_places`.
    """
    parts = [F.coalesce(F.sha2(column, 256), F.lit("-")) for column in columns]
    if headers is not None:
        pairs = F.transform(
            headers, lambda one: F.concat_ws("=", F.hex(one["key"]), F.coalesce(F.hex(one["value"]), F.lit("-")))
        )
        parts.append(F.array_join(pairs, ","))
    return F.substring(F.sha2(F.concat_ws(" ", *parts), 256), 1, _HEADER_DIGITS)


def with_places(digest: Column, source: Sequence[Column]) -> Column:
    """The digests, each with its place among equal records of the same source in the task: ``1f``, ``1f-1``, ``1f-2``.

    The rows go through a Python worker, in their order.
    """
    number: Any = arrow_udf(_numbered, StringType())  # type: ignore[call-overload]
    # Spark may evaluate what it takes for deterministic twice, and would count twice.
    column: Column = number.asNondeterministic()(F.concat_ws(" ", digest, *(one.cast("string") for one in source)))
    return column


def _numbered(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Of a task: of each name the digest that it begins with, and its place."""
    places = _Places()
    for names in arrays:
        numbered = [(name[:_HEADER_DIGITS], places.next(name)) for name in names.to_pylist()]
        yield pa.array([f"{digest}-{place}" if place else digest for digest, place in numbered], pa.string())


# Spark reads there what goes in and comes out.
_numbered.__annotations__ = {"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]}
