"""Columns of records for Kafka: key, value, and headers that name the source record.

Nothing here needs the schema of a DataFrame, so it works in query functions of declared pipelines, in which Spark
refuses to analyse plans (ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.source_headers import (
    SOURCE_DIGEST,
    SOURCE_INDEX,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
)
from aioparallel.spark.row_names import record_digest, with_places

__all__ = ["ColumnOrName", "outgoing", "source_headers"]

ColumnOrName: TypeAlias = Column | str

_HEADERS: Final = "array<struct<key:string,value:binary>>"
"""The type of the column ``headers`` of Spark's Kafka source and sink."""
_SOURCE: Final = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_INDEX, SOURCE_DIGEST)


@refuses_others
def source_headers(
    headers: ColumnOrName | None = "headers",
    *,
    topic: ColumnOrName = "topic",
    partition: ColumnOrName = "partition",
    offset: ColumnOrName = "offset",
    index: ColumnOrName | None = None,
    digest_of: Sequence[ColumnOrName] = (),
    real_time: bool = False,
) -> Column:
    """The column ``headers`` of a derived record: the original headers, and the source record's place.

    ``headers``: the original headers, as Spark's source returns them; headers with the names below are replaced. NULL,
    which Spark returns for a record without headers, means none. None: there is no such column.
    ``topic``, ``partition``, ``offset``: the record's place, written as ``src-topic``, ``src-partition`` and
    ``src-offset`` in UTF-8 text (``b"1024"``). With them a consumer recognises copies: Spark writes at least once, and
    repeats up to a micro-batch after a crash.

    If one record becomes several (``explode``), all have the same place and a consumer would take them for copies. One
    of these tells them apart:
    ``index``: the number of each, from 0, the same each time, as from ``posexplode``; written as ``src-index``.
    ``digest_of``: the written columns (key and value, strings or binary). A digest of them and of the headers is
    written as ``src-digest``, together with the index among equal records of the task: for that the rows pass through
    a Python worker. ``real_time``: for real-time mode, which does not support Python: equal records are then copies.
    """
    places = {SOURCE_TOPIC: topic, SOURCE_PARTITION: partition, SOURCE_OFFSET: offset}
    if index is not None:
        places[SOURCE_INDEX] = index
    kept = None
    if headers is not None:
        # concat with NULL is NULL, which would drop the source headers.
        original = F.coalesce(_column(headers), F.array().cast(_HEADERS))
        kept = F.filter(original, lambda header: ~header["key"].isin(*_SOURCE))
    if digest_of:
        digest = record_digest([_column(column) for column in digest_of], kept)
        source = [_column(one) for one in (partition, offset, topic)]
        places[SOURCE_DIGEST] = digest if real_time else with_places(digest, source)
    added = F.array(*(_header(name, place) for name, place in places.items()))
    return added if kept is None else F.concat(kept, added)


@refuses_others
def outgoing(
    *,
    key: ColumnOrName | None = "key",
    value: ColumnOrName = "value",
    headers: ColumnOrName | None = "headers",
    source: bool = True,
    index: ColumnOrName | None = None,
    real_time: bool = False,
) -> Callable[[DataFrame], DataFrame]:
    """For ``df.transform(outgoing(...))``: selects exactly the columns that Spark's Kafka sink should write.

    ``key``, ``value``: columns of strings (written as UTF-8) or bytes, NULL for none. ``key=None``: no keys.
    ``headers``: the column of headers; None: no headers. ``source``: whether to add source headers, see
    :func:`source_headers`; needs the columns topic, partition and offset of :func:`read_topic`. ``index``: the number
    of a record among those derived from one. Without it they are told apart by a digest of key, value and headers, and
    by their index among equal ones in the task; if a value differs when a batch is repeated, it counts as another
    record. ``index=F.lit(0)`` if there is one derived record for each. ``real_time``: for a stream in real-time mode,
    in which equal records derived from one are copies; give them an index.

    Other columns are dropped: the sink would use columns ``topic`` and ``partition`` as the destination.
    """

    def select(frame: DataFrame) -> DataFrame:
        written = [_no_bytes() if key is None else _column(key), _column(value)]
        columns = written[:]
        names = ["key", "value"]
        if source:
            digest_of = written if index is None else ()
            columns.append(source_headers(headers, index=index, digest_of=digest_of, real_time=real_time))
            names.append("headers")
        elif headers is not None:
            columns.append(_column(headers))
            names.append("headers")
        return frame.select(*(column.alias(name) for column, name in zip(columns, names, strict=True)))

    return select


def _header(name: str, value: ColumnOrName) -> Column:
    return F.struct(F.lit(name).alias("key"), _column(value).cast("string").cast("binary").alias("value"))


def _column(column: ColumnOrName) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _no_bytes() -> Column:
    return F.lit(None).cast("binary")
