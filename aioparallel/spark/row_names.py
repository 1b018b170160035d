"""Names of rows that stay the same when a row is repeated: for idempotency keys of the sink and headers of records.

A place in Kafka (topic, partition, offset) does not identify a row: after ``explode`` many rows share it. The name adds
a digest of the row's values, and for rows with equal values the index among them. Nothing else is stable when a batch
is repeated: after a restart Spark assigns the partitions of a topic to tasks in another order.

If values differ from run to run (``now()``, ``rand()``, the response of a service), so does the name: a repeated row is
handled again. Different rows never get the same name.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from aioparallel.records.errors import ConfigurationError, Reject
from aioparallel.spark.text_options import TextOptions
from aioparallel.spark.values import Row

__all__ = ["TOPIC_COLUMNS", "Naming", "RowNames", "digest_of_row", "has_place", "record_digest", "with_places"]

TOPIC_COLUMNS: Final[dict[str, DataType]] = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
"""A record's place in Kafka, as :func:`~aioparallel.spark.topics.read_topic` returns it. Columns with these names and
other types are not used."""

_NONE: Final = "none"
_WINDOW: Final = 50_000
"""Least number of rows among which equal ones are told apart. Twice as many are kept, 100 bytes each."""
_DIGEST_BYTES: Final = 16
_HEADER_DIGITS: Final = 16
"""Digits of the digest in a header, which only tells apart records derived from one."""


def has_place(schema: StructType) -> bool:
    """Whether the rows have their record's place in Kafka."""
    types = {field.name: field.dataType for field in schema}
    return all(types.get(name) == kind for name, kind in TOPIC_COLUMNS.items())


@dataclass(frozen=True)
class Naming:
    """How rows of a sink are named; made on the driver."""

    by: Literal["id", "topic", "none"]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: TextOptions, schema: StructType) -> Naming:
        """From the option ``id``, or from the columns of the rows. Raises ConfigurationError without either."""
        if options.text("id", "").strip() == _NONE:
            if _NONE in schema.fieldNames():
                raise ConfigurationError("id", _NONE, "means no keys, but is also a column: rename the column")
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
            'is needed, as nothing identifies these rows when a batch is repeated: .option("id", "order") with the '
            f"columns that identify a row; or keep the columns {wanted} of read_topic (there is "
            f'{", ".join(found) or "none of them"}); or .option("id", "none") for a service that needs no keys',
        )


class RowNames:
    """Names the rows of a task, in order."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._places = _Places()

    def name(self, row: Row) -> str | Reject | None:
        """The name of the next row; None without names; Reject, with the reason, if the row cannot have one."""
        by, columns = self._naming.by, self._naming.columns
        for column in columns:
            if row[column] is None:
                return Reject(
                    f"column {column} is NULL, so nothing identifies this row when it is repeated: leave such rows "
                    f'out, or give columns that are never NULL in the option "id" (here: {", ".join(columns)})'
                )
        if by == "none":
            return None
        if by == "id":
            return _encoded([row[name] for name in columns])
        digest = digest_of_row(row)
        name = f"{row['topic']}-{row['partition']}-{row['offset']}-{digest.hex()}"
        place = self._places.next(digest)
        return f"{name}-{place}" if place else name


class _Places:
    """Counts equal names among the last ones."""

    def __init__(self) -> None:
        self._newer: dict[Hashable, int] = {}
        self._older: dict[Hashable, int] = {}

    def next(self, name: Hashable) -> int:
        """The index of a name among equal ones; 0 for the first."""
        place = self._newer.get(name)
        if place is None:
            if len(self._newer) >= _WINDOW:
                self._older, self._newer = self._newer, {}
            place = self._older.get(name, 0)
        self._newer[name] = place + 1
        return place


def digest_of_row(row: Row) -> bytes:
    """A digest of all values in the order of the columns, the same in each process and on each platform."""
    # Texts may hold lone surrogates, which JSON escapes in ASCII.
    return blake2b(_encoded([*row.values()]).encode("ascii"), digest_size=_DIGEST_BYTES).digest()


# Maps are sorted by key. Types that JSON lacks (times, decimals, binary) are written by str(), which is unique for the
# values of a type; types need not be told apart, as a column has one.
_JSON: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=str)


def _encoded(values: list[Any]) -> str:
    try:
        return _JSON.encode(values)
    except TypeError:  # a map with keys other than texts and numbers
        return _JSON.encode(_with_lists(values))


def _with_lists(value: Any) -> Any:
    """Maps as lists of pairs, sorted by the encoded key."""
    if isinstance(value, dict):
        pairs = [[_with_lists(key), _with_lists(one)] for key, one in value.items()]
        return sorted(pairs, key=lambda pair: _JSON.encode(pair[0]))
    if isinstance(value, list | tuple):
        return [_with_lists(one) for one in value]
    return value


def record_digest(columns: Sequence[Column], headers: Column | None) -> Column:
    """A digest of a record to be written, as a column: of ``columns`` (strings or binary) and ``headers``.

    Equal records have equal digests, as a Spark expression cannot count them. See :func:`with_places`.
    """
    parts = [F.coalesce(F.sha2(column, 256), F.lit("-")) for column in columns]
    if headers is not None:
        pairs = F.transform(
            headers, lambda one: F.concat_ws("=", F.hex(one["key"]), F.coalesce(F.hex(one["value"]), F.lit("-")))
        )
        parts.append(F.array_join(pairs, ","))
    return F.substring(F.sha2(F.concat_ws(" ", *parts), 256), 1, _HEADER_DIGITS)


def with_places(digest: Column, source: Sequence[Column]) -> Column:
    """Digests with the index among equal records of the same source in the task: ``1f``, ``1f-1``, ``1f-2``.

    The rows pass through a Python worker in order.
    """
    number: Any = arrow_udf(_numbered, StringType())  # type: ignore[call-overload]
    # Nondeterministic: Spark may evaluate a deterministic column twice, which would count twice.
    column: Column = number.asNondeterministic()(F.concat_ws(" ", digest, *(one.cast("string") for one in source)))
    return column


def _numbered(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Returns for each name the digest at its beginning, and its index."""
    places = _Places()
    for names in arrays:
        numbered = [(name[:_HEADER_DIGITS], places.next(name)) for name in names.to_pylist()]
        yield pa.array([f"{digest}-{place}" if place else digest for digest, place in numbered], pa.string())


# Spark reads the types of the function from its annotations.
_numbered.__annotations__ = {"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]}
