"""Columns of records that leave for Kafka: key, value, and headers that say where each came from.

Nothing here asks for the schema of a DataFrame, so all of it may be used in query functions of declared pipelines,
where Spark refuses to analyse a plan (ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.coordinates import SOURCE_DIGEST, SOURCE_INDEX, SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_TOPIC
from aioparallel.spark.row_names import record_digest, with_places

__all__ = ["ColumnOrName", "outgoing", "source_headers"]

ColumnOrName: TypeAlias = Column | str

_HEADERS: Final = "array<struct<key:string,value:binary>>"
"""The type of the column ``headers`` of Spark's Kafka source and sink."""
_SOURCE: Final = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_INDEX, SOURCE_DIGEST)


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
    """The column ``headers`` of a record that is made of another one: its headers, and where it stands.

    ``headers``: the original headers, as Spark's source gives them: kept, but for those of an earlier stage with the
    names below. NULL, which Spark gives for a record without any, is no headers here. None: there are none to keep.
    ``topic``, ``partition``, ``offset``: the record's place. They become ``src-topic``, ``src-partition`` and
    ``src-offset``, each as UTF-8 text (``b"1024"``). With them a consumer drops what comes twice: Spark writes at least
    once, and after a crash up to a micro-batch again.

    Where one record becomes several (``explode``), all of them stand at one place, and a consumer would take them for
    copies. They are told apart by one of these:
    ``index``: which of them this is, from 0, the same each time, as of ``posexplode``; ``src-index``.
    ``digest_of``: the columns that are written, key and value, texts or bytes. A digest of them and of the headers
    becomes ``src-digest``, with the place among records of the task that are equal in all of these: the rows go through
    a Python worker for that. ``real_time``: for real-time mode, which lets no Python in: then equal records are copies.
    """
    places = {SOURCE_TOPIC: topic, SOURCE_PARTITION: partition, SOURCE_OFFSET: offset}
    if index is not None:
        places[SOURCE_INDEX] = index
    kept = None
    if headers is not None:
        # concat with NULL is NULL: the coordinates would be lost for each record without headers.
        original = F.coalesce(_column(headers), F.array().cast(_HEADERS))
        kept = F.filter(original, lambda header: ~header["key"].isin(*_SOURCE))
    if digest_of:
        digest = record_digest([_column(column) for column in digest_of], kept)
        stands = [_column(one) for one in (partition, offset, topic)]
        places[SOURCE_DIGEST] = digest if real_time else with_places(digest, stands)
    added = F.array(*(_header(name, place) for name, place in places.items()))
    return added if kept is None else F.concat(kept, added)


def outgoing(
    *,
    key: ColumnOrName | None = "key",
    value: ColumnOrName = "value",
    headers: ColumnOrName | None = "headers",
    source: bool = True,
    index: ColumnOrName | None = None,
    real_time: bool = False,
) -> Callable[[DataFrame], DataFrame]:
    """For ``df.transform(outgoing(...))``: the columns that Spark's Kafka sink writes, and no others.

    ``key``, ``value``: columns of strings (written as UTF-8) or bytes, NULL for none. ``key=None``: records without.
    ``headers``: the column of headers; None: without. ``source``: whether coordinates of the source are added, see
    :func:`source_headers`; they need the columns topic, partition and offset of :func:`read_topic`. ``index``: the
    number of a record among those made of one; without it they are told apart by a digest of key, value and headers,
    and by their place among those of the task that are equal in these. Then a record whose value differs when a batch
    is repeated is another one. With ``index=F.lit(0)`` there is one of each. ``real_time``: for a stream in real-time
    mode, where equal ones made of one record are copies; give them an index.

    Those are left out, which matters: the sink takes a column ``topic`` for where to write, and ``partition``, too.
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
