"""Runs the transformation and the handler of a stream over a range of a topic, or over Parquet files.

::

    january = FromTopic("raw", "localhost:9092", datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC))
    operator = parallel_map(enrich, schema="tailnum string, weather string", key="tailnum")
    backfill(spark, january, clean, operator, to=ToParquet("january"))  # clean: as in the stream

A backfill is a batch without a consumer group and without a checkpoint, so it does not affect anything that runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

from pyspark.sql import DataFrame, SparkSession

from aioparallel.config.callables import is_async
from aioparallel.config.handling import check_choice
from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.errors import CheckFailed, ConfigurationError
from aioparallel.spark.checks import check, other_partitions
from aioparallel.spark.connector_options import READING, WRITING
from aioparallel.spark.frame_inputs import check_frame, check_paths
from aioparallel.spark.headers import ColumnOrName
from aioparallel.spark.logs import check_client_options, cluster_of, offsets_at, survey
from aioparallel.spark.parquet_output import Mode, ParquetOutput
from aioparallel.spark.topic_positions import Position, check_order, ending_options, starting_options
from aioparallel.spark.topic_ranges import TopicRange
from aioparallel.spark.topics import read_topic, topic_names, write_topic

__all__ = ["FromParquet", "FromTopic", "Mode", "Step", "ToParquet", "ToTopic", "backfill"]

Step: TypeAlias = Callable[[DataFrame], DataFrame]
"""A transformation, or the result of :func:`parallel_map`."""
Path: TypeAlias = str | os.PathLike[str]

_TIMEOUT: Final = 30.0
"""Seconds for each request to the cluster."""
_SPLITS: Final = "it splits a partition between tasks, so that records of one key overtake each other; leave it out"
_COMMITTED: Final = "leave it out: a backfill reads committed records"
_ALL: Final = "leave it out: a backfill reads all from starting to ending"
_NO_ROWS: Final = "leave it out: a time after the last record gives no rows"
_BATCH: Final = "leave it out: a backfill is a batch and has no checkpoint"
_READING: Final = READING.refusing(
    {
        "isolation": _COMMITTED,
        "kafka.isolation.level": _COMMITTED,
        "keep_key_order": "leave it out: a backfill keeps the order of keys",
        "maxOffsetsPerTrigger": _ALL,
        "maxRecordsPerPartition": _SPLITS,
        "minPartitions": _SPLITS,
        "past_the_end": _NO_ROWS,
        "per_trigger": _ALL,
        "startingOffsetsByTimestampStrategy": _NO_ROWS,
    },
    ("bootstrap_servers", "client_options", "ending", "starting", "topics"),
)
_WRITING: Final = WRITING.refusing(
    {
        "checkpoint": _BATCH,
        "checkpointLocation": _BATCH,
        "queryName": "leave it out: a backfill is a batch and has no name",
    },
    ("bootstrap_servers", "client_options", "index", "same_partitions", "topic"),
)
"""What read_topic and write_topic have an argument for, and a backfill does not."""


@refuses_others
@dataclass(frozen=True)
class FromTopic:
    """Records of one or more topics from ``starting`` up to, but without, ``ending``; columns as of :func:`read_topic`.

    ``starting``, ``ending``: "earliest" or "latest", a time, or offsets or times for all partitions; as in
    :func:`read_topic`. A partition without records that late gives no rows.
    ``options``: further options of Spark's source; ``client_options``: of aiokafka's consumer, which checks the topics.
    A cluster with TLS or SASL needs both. Raises ConfigurationError for wrong ones of both.
    """

    topics: str | Sequence[str]
    bootstrap_servers: str
    starting: Position = "earliest"
    ending: Position = "latest"
    options: Mapping[str, object] | None = None
    client_options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        _READING.check(self.options)
        check_client_options(self.bootstrap_servers, self.client_options)


@refuses_others
@dataclass(frozen=True)
class FromParquet:
    """Parquet files: one or more directories. Their rows have no order: if a handler needs the order of a key, put the
    step ``repartition_by_key(key, order_by=...)`` before it."""

    paths: Path | Sequence[Path]


@refuses_others
@dataclass(frozen=True)
class ToTopic:
    """A topic, written by :func:`write_topic`: at least once.

    ``same_partitions``: True requires as many partitions as the topics that are read have, so that keys keep their
    partition. ``index``: a column that numbers the records derived from one, as in :func:`write_topic`. ``options``: of
    Spark's sink; ``client_options``: as in :class:`FromTopic`.
    """

    topic: str
    bootstrap_servers: str
    same_partitions: bool = True
    index: ColumnOrName | None = None
    options: Mapping[str, object] | None = None
    client_options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        _WRITING.check(self.options)
        check_client_options(self.bootstrap_servers, self.client_options)


@refuses_others
@dataclass(frozen=True)
class ToParquet:
    """A directory of Parquet files. ``partition_by``: one or more columns that become directories.

    ``mode``: for a directory that has files: ``"error"`` raises; ``"append"`` adds files; ``"overwrite"`` replaces all
    files, or with ``partition_by`` the partitions that have rows now. Partitions without rows now stay. Existing files
    must be partitioned by the same columns.

    Modes other than ``"append"`` write next to the directory, as ``.name.backfill-...``, and move the files at the end.
    So a run that fails or is killed leaves what was there. Local files and HDFS move a partition in one step. Object
    stores copy each file, and readers see part of them meanwhile. If only the server of Spark Connect reaches the
    files, Spark replaces partitions itself, and without ``partition_by`` existing files are not overwritten.
    """

    path: Path
    mode: Mode = "error"
    partition_by: str | Sequence[str] = ()


@refuses_others
def backfill(spark: SparkSession, source: FromTopic | FromParquet, *steps: Step, to: ToTopic | ToParquet) -> None:
    """Read ``source``, apply the steps, write the result to ``to``.

    The order of a key is that of a topic partitioned by it, as long as no step shuffles. With
    ``parallel_map(..., on_error="emit")`` rows that fail are in the output with their errors.

    A second run writes everything to a topic again. Consumers recognise the copies by the source headers, which are
    written if the steps keep the columns topic, partition and offset. Parquet files can be overwritten.

    Raises ConfigurationError for arguments that do not fit together, also if a step, a table or a glob reads the
    output. Raises CheckFailed if a topic is missing, has another number of partitions or does not hold the range, or if
    the session cannot read Kafka.
    """
    _check_steps(steps)
    _check_places(source, to)
    output = _output(spark, source, to) if isinstance(to, ToParquet) else None
    _check_topics(spark, source, to)
    frame = _read(spark, source)
    for number, step in enumerate(steps, 1):
        frame = _after(frame, number, step)
    if isinstance(to, ToTopic):
        write_topic(frame, to.topic, bootstrap_servers=to.bootstrap_servers, index=to.index, options=to.options)
    elif output is not None:
        check_frame(spark, frame, output.path, os.fspath(to.path))
        output.write(frame)


def _output(spark: SparkSession, source: FromTopic | FromParquet, to: ToParquet) -> ParquetOutput:
    columns = [to.partition_by] if isinstance(to.partition_by, str) else list(to.partition_by)
    output = ParquetOutput(spark, to.path, to.mode, columns)
    if isinstance(source, FromParquet):
        check_paths(spark, _paths(source), output.path, os.fspath(to.path))
    return output


def _read(spark: SparkSession, source: FromTopic | FromParquet) -> DataFrame:
    if isinstance(source, FromParquet):
        return spark.read.parquet(*_paths(source))
    return read_topic(
        spark,
        source.topics,
        bootstrap_servers=source.bootstrap_servers,
        streaming=False,
        starting=source.starting,
        ending=source.ending,
        past_the_end="latest",
        options=source.options,
    )


def _after(frame: DataFrame, number: int, step: Step) -> DataFrame:
    result: object = step(frame)
    if not isinstance(result, DataFrame):
        raise ConfigurationError(
            f"step {number}", step, f"returned {type(result).__name__}, and must return a DataFrame"
        )
    if result.isStreaming:
        raise ConfigurationError(
            f"step {number}", step, "returned a stream; a backfill is a batch: read with spark.read"
        )
    return result


def _check_steps(steps: Sequence[object]) -> None:
    for number, step in enumerate(steps, 1):
        if is_async(step):
            raise ConfigurationError(
                f"step {number}", step, "is a handler: give parallel_map(handler, schema=...), which runs it on rows"
            )
        if not callable(step):
            raise ConfigurationError(f"step {number}", step, "must be a function from DataFrame to DataFrame")


def _check_places(source: object, to: object) -> None:
    if not isinstance(source, FromTopic | FromParquet):
        raise ConfigurationError("source", source, "must be FromTopic(...) or FromParquet(...)")
    if not isinstance(to, ToTopic | ToParquet):
        raise ConfigurationError("to", to, "must be ToTopic(...) or ToParquet(...)")
    if isinstance(to, ToParquet):
        check_choice("to mode", to.mode, get_args(Mode))
    if isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_circle(source, to):
        raise ConfigurationError(
            "to", to.topic, "is also read, and would have all of its records twice: name another topic"
        )


def _is_circle(source: FromTopic, to: ToTopic) -> bool:
    if to.topic not in topic_names(source.topics):
        return False
    if _is_one_cluster(source, to):
        return True
    # A cluster may have several addresses.
    first, second = (
        cluster_of(place.bootstrap_servers, timeout=_TIMEOUT, client_options=place.client_options)
        for place in (source, to)
    )
    return first is not None and first == second


def _check_topics(spark: SparkSession, source: FromTopic | FromParquet, to: ToTopic | ToParquet) -> None:
    """Spark would create a missing topic, or wait a minute for it."""
    together = isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_one_cluster(source, to)
    same = isinstance(to, ToTopic) and to.same_partitions
    inputs: Mapping[str, int] = {}
    if isinstance(source, FromTopic):
        outputs = [to.topic] if together and isinstance(to, ToTopic) else []
        inputs = _partitions(spark, source, topic_names(source.topics), outputs, same_partitions=same)
        _check_range(source)
    if isinstance(to, ToTopic) and not together:
        count = _partitions(spark, to, [to.topic])[to.topic]
        if same and (sentence := other_partitions(to.topic, count, inputs)):
            raise CheckFailed([sentence])


def _check_range(source: FromTopic) -> None:
    """Spark would wait two minutes for offsets that do not exist yet, and then report lost data."""
    topics = topic_names(source.topics)
    starting_options(source.starting, topics, streaming=False, past_the_end="latest")  # checks them
    ending_options(source.ending, topics)
    if isinstance(source.starting, Mapping) or isinstance(source.ending, Mapping):
        logs = survey(source.bootstrap_servers, topics, timeout=_TIMEOUT, client_options=source.client_options)
        given = {name.lower(): str(value).lower() for name, value in (source.options or {}).items()}
        part = TopicRange(source.starting, source.ending, logs, given.get("failondataloss") == "false")
        if findings := part.findings():
            raise CheckFailed(findings)
        times = part.times_to_ask()
        if times:
            found = offsets_at(source.bootstrap_servers, times, timeout=_TIMEOUT, client_options=source.client_options)
            if findings := part.exchanged(found):
                raise CheckFailed(findings)
    check_order(source.starting, source.ending)


def _partitions(
    spark: SparkSession,
    place: FromTopic | ToTopic,
    topics: list[str],
    outputs: Sequence[str] = (),
    *,
    same_partitions: bool = False,
) -> Mapping[str, int]:
    return check(
        spark,
        bootstrap_servers=place.bootstrap_servers,
        topics=topics,
        outputs=outputs,
        same_partitions=same_partitions,
        sample=0,
        client_options=place.client_options,
    ).partitions


def _is_one_cluster(source: FromTopic, to: ToTopic) -> bool:
    first, second = ({server.strip() for server in one.bootstrap_servers.split(",")} for one in (source, to))
    return not first.isdisjoint(second)


def _paths(source: FromParquet) -> list[str]:
    given = source.paths
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not paths:
        raise ConfigurationError("source paths", given, "must name a directory or file, or several")
    return [os.fspath(path) for path in paths]
