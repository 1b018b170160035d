"""The same transformation and the same handler once more, over what is there: a range of a topic, or Parquet files.

::

    january = FromTopic("raw", "localhost:9092", datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC))
    operator = parallel_map(enrich, schema="tailnum string, weather string", key="tailnum")
    backfill(spark, january, clean, operator, to=ToParquet("january"))  # clean: as in the stream

A batch, without a consumer group and without a checkpoint: nothing that runs notices it. :func:`read_topic`, the steps
and :func:`write_topic` do the work; here they are put together and looked at before anything is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

from pyspark.sql import DataFrame, SparkSession

from aioparallel.config.policies import is_async
from aioparallel.records.errors import CheckFailed, ConfigurationError
from aioparallel.spark.checks import Checked, check, other_partitions
from aioparallel.spark.frame_inputs import check_frame, check_paths
from aioparallel.spark.headers import ColumnOrName
from aioparallel.spark.logs import cluster_of, offsets_at, survey
from aioparallel.spark.parquet_output import Mode, ParquetOutput
from aioparallel.spark.topic_positions import Position, check_order, ending_options, starting_options
from aioparallel.spark.topic_ranges import TopicRange
from aioparallel.spark.topics import read_topic, topic_names, write_topic

__all__ = ["FromParquet", "FromTopic", "Mode", "Step", "ToParquet", "ToTopic", "backfill"]

Step: TypeAlias = Callable[[DataFrame], DataFrame]
"""A transformation, or what :func:`parallel_map` gives."""
Path: TypeAlias = str | os.PathLike[str]

_ANSWER: Final = 30.0
"""Seconds for each question to the cluster."""
_SPLITS: Final = "splits a partition between tasks, so that records of one key overtake each other; leave it out"
_NOT_HERE: Final[dict[str, str]] = {
    "checkpointlocation": "leave it out: a backfill is a batch and has no checkpoint",
    "kafka.isolation.level": "leave it out: a backfill reads committed records",
    "maxoffsetspertrigger": "leave it out: a backfill reads all from starting to ending",
    "maxrecordsperpartition": _SPLITS,
    "minpartitions": _SPLITS,
    "startingoffsetsbytimestampstrategy": "leave it out: a time behind the last record gives no rows",
}
"""Options of Spark's source and sink for which read_topic and write_topic have a word, and a backfill has none."""


@dataclass(frozen=True)
class FromTopic:
    """Records of a topic, or of several, from ``starting`` up to but without ``ending``; columns as of
    :func:`read_topic`.

    ``starting``, ``ending``: an edge, a time, or offsets or times for all partitions; as there. A partition that has
    nothing so late gives no rows. ``options``: more of Spark's source; ``client_options``: of aiokafka's
    consumer, which looks whether all is there. Both are needed where the cluster wants TLS or SASL.
    """

    topics: str | Sequence[str]
    bootstrap_servers: str
    starting: Position = "earliest"
    ending: Position = "latest"
    options: Mapping[str, object] | None = None
    client_options: Mapping[str, object] | None = None


@dataclass(frozen=True)
class FromParquet:
    """Parquet files: a directory, or several. They have no order that a key could rely on: let a step be
    ``repartition_by_key(key, order_by=...)`` before a handler that needs one."""

    paths: Path | Sequence[Path]


@dataclass(frozen=True)
class ToTopic:
    """A topic, written as by :func:`write_topic`: at least once.

    ``same_partitions``: it must have as many as the topics that are read, so that keys keep theirs; False: it may have
    others. ``index``: a column that numbers the records made of one, as there. ``options``, ``client_options``: as for
    :class:`FromTopic`, of Spark's sink.
    """

    topic: str
    bootstrap_servers: str
    same_partitions: bool = True
    index: ColumnOrName | None = None
    options: Mapping[str, object] | None = None
    client_options: Mapping[str, object] | None = None


@dataclass(frozen=True)
class ToParquet:
    """A directory of Parquet files. ``partition_by``: a column, or several, that become directories.

    ``mode``: what happens where files are in it: ``"error"``; ``"append"`` adds to them; ``"overwrite"`` replaces them,
    and with ``partition_by`` the partitions that have rows now: the others stay, also those that have no row any more.
    What is there must be partitioned by the same columns.
    All but ``"append"`` write beside it, as ``.name.backfill-...``, and move the files at the end: a run that fails, or
    is killed, leaves what was there. Local files and HDFS are moved in one step for each partition; object stores copy
    each file, and readers see some of them meanwhile. Where only the server of Spark Connect reaches the files, Spark
    replaces partitions itself, and without ``partition_by`` what exists is not overwritten.
    """

    path: Path
    mode: Mode = "error"
    partition_by: str | Sequence[str] = ()


def backfill(spark: SparkSession, source: FromTopic | FromParquet, *steps: Step, to: ToTopic | ToParquet) -> None:
    """Read ``source``, take it through the steps, write it to ``to``.

    The order of a key holds from a topic that is partitioned by it, as long as no step shuffles. Rows that may fail:
    ``parallel_map(..., on_error="emit")``, and they are in the output with their errors.

    Run again, a topic gets all of it again: the source's coordinates, which travel as headers where a step keeps the
    columns topic, partition and offset, tell a consumer what it has; Parquet files can be overwritten.

    Raises ConfigurationError for what does not fit together, among them an output that is read, by a step, a table or
    a glob; and CheckFailed where a topic is missing, or has another number of partitions or no such range, or the
    session cannot read Kafka.
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
            f"step {number}", step, f"gave {type(result).__name__}, and must give a DataFrame: does it return one?"
        )
    if result.isStreaming:
        raise ConfigurationError(f"step {number}", step, "gave a stream; a backfill is a batch: read with spark.read")
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
    if isinstance(to, ToParquet) and to.mode not in get_args(Mode):
        raise ConfigurationError("to mode", to.mode, f"must be one of {', '.join(map(repr, get_args(Mode)))}")
    for place in (source, to):
        for name, value in (place.options or {}).items() if isinstance(place, FromTopic | ToTopic) else ():
            if name.lower() in _NOT_HERE:
                raise ConfigurationError(f"options {name}", value, _NOT_HERE[name.lower()])
    if isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_circle(source, to):
        raise ConfigurationError("to", to.topic, "is what is read, and would have all of it twice: take another topic")


def _is_circle(source: FromTopic, to: ToTopic) -> bool:
    if to.topic not in topic_names(source.topics):
        return False
    if _is_one_cluster(source, to):
        return True
    # One cluster may have other addresses.
    first, second = (
        cluster_of(place.bootstrap_servers, timeout=_ANSWER, client_options=place.client_options)
        for place in (source, to)
    )
    return first is not None and first == second


def _check_topics(spark: SparkSession, source: FromTopic | FromParquet, to: ToTopic | ToParquet) -> None:
    """Spark itself would create a topic that is missing, or wait for it for a minute."""
    together = isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_one_cluster(source, to)
    same = isinstance(to, ToTopic) and to.same_partitions
    inputs: Mapping[str, int] = {}
    if isinstance(source, FromTopic):
        outputs = [to.topic] if together and isinstance(to, ToTopic) else []
        inputs = _look(spark, source, topic_names(source.topics), outputs, same_partitions=same).partitions
        _check_range(source)
    if isinstance(to, ToTopic) and not together:
        count = _look(spark, to, [to.topic], [], same_partitions=False).partitions[to.topic]
        if same and (sentence := other_partitions(to.topic, count, inputs)):
            raise CheckFailed([sentence])


def _check_range(source: FromTopic) -> None:
    """Spark would wait two minutes for records that are not there yet, and then speak of lost data."""
    topics = topic_names(source.topics)
    starting_options(source.starting, topics, streaming=False, past_the_end="latest")  # that they are positions
    ending_options(source.ending, topics)
    if isinstance(source.starting, Mapping) or isinstance(source.ending, Mapping):
        logs = survey(source.bootstrap_servers, topics, timeout=_ANSWER, client_options=source.client_options)
        given = {name.lower(): str(value).lower() for name, value in (source.options or {}).items()}
        part = TopicRange(source.starting, source.ending, logs, given.get("failondataloss") == "false")
        if findings := part.findings():
            raise CheckFailed(findings)
        times = part.times_to_ask()
        if times:
            found = offsets_at(source.bootstrap_servers, times, timeout=_ANSWER, client_options=source.client_options)
            if findings := part.exchanged(found):
                raise CheckFailed(findings)
    check_order(source.starting, source.ending)


def _look(
    spark: SparkSession, place: FromTopic | ToTopic, topics: list[str], outputs: list[str], *, same_partitions: bool
) -> Checked:
    return check(
        spark,
        bootstrap_servers=place.bootstrap_servers,
        topics=topics,
        outputs=outputs,
        same_partitions=same_partitions,
        sample=0,
        client_options=place.client_options,
    )


def _is_one_cluster(source: FromTopic, to: ToTopic) -> bool:
    first, second = ({server.strip() for server in one.bootstrap_servers.split(",")} for one in (source, to))
    return not first.isdisjoint(second)


def _paths(source: FromParquet) -> list[str]:
    given = source.paths
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not paths:
        raise ConfigurationError("source paths", given, "must name a directory or a file, or several")
    return [os.fspath(path) for path in paths]
