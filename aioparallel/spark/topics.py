"""Topics as DataFrames: Spark's Kafka source and sink, with options that keep records and their order.

They work over Spark Connect too, and :func:`read_topic` and :func:`sink_options` in declared pipelines::

    @dp.temporary_view
    def raw() -> DataFrame:
        return read_topic(spark, "raw", bootstrap_servers=SERVERS)

    dp.create_sink("work", "kafka", sink_options("work", bootstrap_servers=SERVERS))

    @dp.append_flow(target="work")
    def to_work() -> DataFrame:
        return spark.readStream.table("raw").where("value IS NOT NULL").transform(outgoing())
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegralType, StringType, StructType

from aioparallel.config.handling import check_choice, check_count
from aioparallel.config.unknown_options import no_such_option, refuses_others
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.connector_options import READING, READING_WITHOUT_ORDER, WRITING
from aioparallel.spark.headers import ColumnOrName, outgoing
from aioparallel.spark.row_names import TOPIC_COLUMNS, has_place
from aioparallel.spark.spark_session import is_connect, naming_the_jars
from aioparallel.spark.topic_positions import PastTheEnd, Position, check_order, ending_options, starting_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["read_topic", "sink_options", "topic_names", "write_topic"]

logger = logging.getLogger(__name__)

_TRIGGERS: Final = ("availableNow", "continuous", "once", "processingTime", "realTime")
"""Keywords of Spark's ``DataStreamWriter.trigger``."""


@refuses_others
def read_topic(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    bootstrap_servers: str,
    streaming: bool = True,
    starting: Position = "earliest",
    ending: Position | None = None,
    past_the_end: PastTheEnd = "error",
    per_trigger: int | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    keep_key_order: bool = True,
    options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Read one or more topics through Spark's Kafka source: columns key and value (binary), topic, partition, offset,
    timestamp, timestampType, headers (NULL for a record without headers).

    ``streaming``: a stream, or a batch of existing records.
    ``starting``: "earliest" (default), "latest" (streams only), a datetime with time zone (the first record at or after
    it), or offsets or datetimes for **all** partitions: ``{"raw": {0: 1_000, 1: "earliest"}}``. A stream uses it only
    with a new checkpoint; partitions added later are read from their earliest record.
    ``ending``: the end of a batch in the same form, exclusive. Default: "latest". Not for streams.
    ``past_the_end``: what a starting time after the last record does: "error" (default), or "latest": begin at the end.
    ``per_trigger``: most offsets in a micro-batch, over all partitions and rounded down for each. A crash repeats up to
    one micro-batch, so this limits duplicates. Default: no limit. Streams only.
    ``isolation``: "read_committed" (default) hides records of aborted and open transactions; Spark's own default shows
    them.
    ``keep_key_order``: True refuses ``minPartitions`` and ``maxRecordsPerPartition``. They let several tasks read a
    partition at once, and records of one key overtake each other (4,404 of 50,000 were out of order).
    ``options``: further options of Spark's source by their names: ``{"failOnDataLoss": False}``; consumer properties
    with the prefix ``kafka.``. Spark assigns partitions itself and commits to no group. A misspelled name is refused; a
    property that is like none of Kafka's own passes with a warning.

    Times are exact to the microsecond; timestamps of records are whole milliseconds.

    Raises ConfigurationError for a wrong option, and CheckFailed for a session without the connector (see
    :func:`kafka_jars`). Spark raises later for missing topics and timestamps past the end; :func:`check` finds these
    beforehand.
    """
    names = topic_names(topics)
    given = (READING if keep_key_order else READING_WITHOUT_ORDER).as_text(options)
    check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
    ours = {
        "kafka.bootstrap.servers": _servers(bootstrap_servers),
        "subscribe": ",".join(names),
        "includeHeaders": "true",
        "kafka.isolation.level": isolation,
        **starting_options(starting, names, streaming=streaming, past_the_end=past_the_end),
        **(_stream_options(ending, per_trigger) if streaming else _batch_options(starting, ending, per_trigger, names)),
    }
    reader: Any = spark.readStream if streaming else spark.read  # both have format, options and load
    frame: DataFrame
    with naming_the_jars():
        frame = reader.format("kafka").options(**given, **ours).load()
        if is_connect(spark):
            _find_source(frame)
    return frame


@overload
def write_topic(
    df: DataFrame,
    topic: str,
    *,
    bootstrap_servers: str,
    checkpoint: None = None,
    source: bool = True,
    index: ColumnOrName | None = None,
    options: Mapping[str, object] | None = None,
) -> None: ...


@overload
def write_topic(
    df: DataFrame,
    topic: str,
    *,
    bootstrap_servers: str,
    checkpoint: str | os.PathLike[str],
    trigger: Mapping[str, object] | None = None,
    query_name: str | None = None,
    source: bool = True,
    index: ColumnOrName | None = None,
    options: Mapping[str, object] | None = None,
) -> StreamingQuery: ...


@refuses_others
def write_topic(
    df: DataFrame,
    topic: str,
    *,
    bootstrap_servers: str,
    checkpoint: str | os.PathLike[str] | None = None,
    trigger: Mapping[str, object] | None = None,
    query_name: str | None = None,
    source: bool = True,
    index: ColumnOrName | None = None,
    options: Mapping[str, object] | None = None,
) -> StreamingQuery | None:
    """Write a DataFrame to a topic: a batch at once; a stream is started, and its query returned.

    ``df``: its column ``value``, and ``key`` and ``headers`` if present, are written; they are strings (UTF-8) or
    binary. The partition is murmur2 of the key, like in Java's and aiokafka's producers (librdkafka needs
    ``partitioner=murmur2_random`` for that). So with an unchanged key and as many partitions as the source, records
    keep their partition number.
    ``source``: whether to add source headers, if the frame has topic, partition and offset of :func:`read_topic`. They
    get a digest of the record and its index among equal ones, or ``index``: a column that numbers the records derived
    from one; see :func:`outgoing`. In real-time mode there is no index among equal ones.
    ``checkpoint``: the checkpoint directory of a stream; None for a batch.
    ``trigger``: of a stream: ``{"availableNow": True}``, ``{"processingTime": "10 seconds"}``,
    ``{"realTime": "5 minutes"}``. Default: the next micro-batch follows at once.
    ``query_name``: of a stream, for listeners and logs.
    ``options``: further options of Spark's sink by their names; producer properties with the prefix ``kafka.``. A
    misspelled name is refused, and so are ``kafka.acks`` other than ``all``, ``kafka.enable.idempotence`` other than
    True and more than 5 ``kafka.max.in.flight.requests.per.connection``.

    At least once: after a failure a batch or micro-batch is partly written again; see :func:`source_headers`. It reads
    the frame's schema, so it cannot be used in query functions of declared pipelines: use :func:`sink_options` and
    :func:`outgoing` there. Raises ConfigurationError, and CheckFailed for a session without the connector.
    """
    sink = sink_options(topic, bootstrap_servers=bootstrap_servers, options=options)
    _check_trigger(trigger)
    if df.isStreaming is not (checkpoint is not None):
        wanted = "a directory, to go on from after a restart" if checkpoint is None else "None, for a batch"
        raise ConfigurationError("checkpoint", checkpoint, f"must be {wanted}")
    is_real_time = trigger is not None and "realTime" in trigger
    frame = _records(df, source=source, index=index, real_time=is_real_time)
    if checkpoint is None:
        if trigger is not None or query_name is not None:
            raise ConfigurationError("trigger", trigger or query_name, "is for streams, as is query_name")
        with naming_the_jars():
            frame.write.format("kafka").options(**sink).save()
        return None
    writer: Any = frame.writeStream.format("kafka").options(**sink).option("checkpointLocation", os.fspath(checkpoint))
    if trigger is not None:
        writer = writer.trigger(**trigger)
        if is_real_time:
            writer = writer.outputMode("update")  # the only one in real-time mode
    if query_name is not None:
        writer = writer.queryName(query_name)
    query: StreamingQuery
    with naming_the_jars():
        query = writer.start()
    return query


@refuses_others
def sink_options(topic: str, *, bootstrap_servers: str, options: Mapping[str, object] | None = None) -> dict[str, str]:
    """Options of Spark's Kafka sink for declared pipelines: ``dp.create_sink(name, "kafka", sink_options(...))``.

    ``options``: as of :func:`write_topic`. Raises ConfigurationError.
    """
    (name,) = topic_names(topic)
    return {**WRITING.as_text(options), "kafka.bootstrap.servers": _servers(bootstrap_servers), "topic": name}


def _check_trigger(trigger: object) -> None:
    if trigger is None:
        return
    if not isinstance(trigger, Mapping):
        raise ConfigurationError("trigger", trigger, 'must be a dict, as in {"availableNow": True}')
    for name, value in trigger.items():
        if name not in _TRIGGERS:
            raise no_such_option(str(name), value, _TRIGGERS, of="trigger")


def _find_source(frame: DataFrame) -> None:
    """Read the schema, because over Connect the connector is looked up only then."""
    try:
        _ = frame.schema
    except Exception as error:
        # Query functions of declared pipelines must not read it; there the error comes when the pipeline runs.
        if "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION" not in str(error):
            raise


def _records(df: DataFrame, *, source: bool, index: ColumnOrName | None, real_time: bool) -> DataFrame:
    """The columns to write. Raises ConfigurationError."""
    types = {field.name: field.dataType for field in df.schema}
    if "value" not in types:
        raise ConfigurationError("df", sorted(types), "must have a column value; see outgoing(key=..., value=...)")
    for name in {"key", "value"} & types.keys():
        if not isinstance(types[name], StringType | BinaryType):
            raise ConfigurationError(
                f"df.{name}", types[name].simpleString(), "must be string or binary; cast it, or use to_json"
            )
    if "headers" in types and not _are_headers(types["headers"]):
        allowed = "must be array<struct<key:string,value:binary>>; see source_headers"
        raise ConfigurationError("df.headers", types["headers"].simpleString(), allowed)
    if source and not has_place(df.schema):
        source = False
        if given := [name for name in TOPIC_COLUMNS if name in types]:
            logger.warning(
                "write_topic adds no source headers, so Deduplicate cannot recognise what Spark writes twice: of the "
                "columns topic, partition and offset of read_topic there is %s; keep all three, or set source=False",
                ", ".join(f"{name} {types[name].simpleString()}" for name in given),
                extra={"action": "no_source_columns"},
            )
    if index is not None and not source:
        raise ConfigurationError(
            "index",
            index,
            "numbers the records derived from one, and needs its topic, partition and offset of read_topic: keep these "
            "columns, and source=True",
        )
    if index is not None:
        kind = df.select(index).schema[0].dataType
        if not isinstance(kind, IntegralType):
            raise ConfigurationError(
                "index", index, f"is {kind.simpleString()}, but must be whole numbers from 0, as from posexplode"
            )
    key, headers = (name if name in types else None for name in ("key", "headers"))
    return df.transform(outgoing(key=key, headers=headers, source=source, index=index, real_time=real_time))


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    parts = [(field.name, type(field.dataType)) for field in element] if isinstance(element, StructType) else []
    return parts == [("key", StringType), ("value", BinaryType)]


def _stream_options(ending: Position | None, per_trigger: int | None) -> dict[str, str]:
    if ending is not None:
        raise ConfigurationError("ending", ending, 'is for batches; a stream ends with trigger={"availableNow": True}')
    if per_trigger is None:
        return {}
    check_count("per_trigger", per_trigger)
    return {"maxOffsetsPerTrigger": str(per_trigger)}


def _batch_options(
    starting: Position, ending: Position | None, per_trigger: int | None, topics: Sequence[str]
) -> dict[str, str]:
    if per_trigger is not None:
        raise ConfigurationError(
            "per_trigger", per_trigger, "is for streams; a batch reads all from starting to ending"
        )
    if ending is None:
        return {}
    options = ending_options(ending, topics)
    check_order(starting, ending)
    return options


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """One or more names as a list. Raises ConfigurationError."""
    given: object = topics
    names: list[object] = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
    if not names or not all(isinstance(name, str) and name and "," not in name for name in names):
        raise ConfigurationError("topics", topics, 'must be names of topics: "flights" or ["flights", "weather"]')
    return [str(name) for name in names]


def _servers(bootstrap_servers: str) -> str:
    given: object = bootstrap_servers
    if not isinstance(given, str) or ":" not in given:
        raise ConfigurationError("bootstrap_servers", given, "must be host:port, several separated by commas")
    return given
