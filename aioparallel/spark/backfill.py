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
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from aioparallel.errors import CheckFailed, ConfigurationError
from aioparallel.policies import is_async
from aioparallel.spark.checks import Checked, check, other_partitions
from aioparallel.spark.logs import survey
from aioparallel.spark.positions import Position, ending_options, starting_options
from aioparallel.spark.topics import read_topic, topic_names, write_topic

__all__ = ["FromParquet", "FromTopic", "Mode", "Step", "ToParquet", "ToTopic", "backfill"]

Step: TypeAlias = Callable[[DataFrame], DataFrame]
"""A transformation, or what :func:`parallel_map` gives."""
Mode: TypeAlias = Literal["error", "append", "overwrite"]
Path: TypeAlias = str | os.PathLike[str]

_ANSWER: Final = 30.0
"""Seconds for each question to the cluster."""


@dataclass(frozen=True)
class FromTopic:
    """Records of a topic, or of several, from ``starting`` up to but without ``ending``; columns as of
    :func:`read_topic`.

    ``starting``, ``ending``: an edge, a time, or offsets or times for all partitions; as there. A partition that has
    nothing so late gives no rows. ``options``: of Spark's source; ``client_options``: of aiokafka's consumer, which
    looks whether all is there. Both are needed where the cluster wants TLS or SASL.
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
    others. ``options``, ``client_options``: as for :class:`FromTopic`, of Spark's sink.
    """

    topic: str
    bootstrap_servers: str
    same_partitions: bool = True
    options: Mapping[str, object] | None = None
    client_options: Mapping[str, object] | None = None


@dataclass(frozen=True)
class ToParquet:
    """A directory of Parquet files. ``mode``: what happens where it exists: ``"error"``, ``"append"`` or
    ``"overwrite"``. ``partition_by``: a column, or several, that become directories."""

    path: Path
    mode: Mode = "error"
    partition_by: str | Sequence[str] = ()


def backfill(spark: SparkSession, source: FromTopic | FromParquet, *steps: Step, to: ToTopic | ToParquet) -> None:
    """Read ``source``, take it through the steps, write it to ``to``.

    The order of a key holds from a topic that is partitioned by it, as long as no step shuffles. Rows that may fail:
    ``parallel_map(..., on_error="emit")``, and they are in the output with their errors.

    Run again, a topic gets all of it again: the source's coordinates, which travel as headers where a step keeps the
    columns topic, partition and offset, tell a consumer what it has; Parquet files can be overwritten.

    Raises ConfigurationError for what does not fit together, and CheckFailed where a topic is missing, or has another
    number of partitions or no such offset yet, or the session cannot read Kafka.
    """
    _check_steps(steps)
    _check_places(source, to)
    _check_topics(spark, source, to)
    frame = _read(spark, source)
    if isinstance(source, FromParquet) and isinstance(to, ToParquet) and to.mode == "overwrite":
        _keep_what_is_read(frame, to)
    for number, step in enumerate(steps, 1):
        frame = _after(frame, number, step)
    if isinstance(to, ToTopic):
        write_topic(frame, to.topic, bootstrap_servers=to.bootstrap_servers, options=to.options)
    else:
        columns = [to.partition_by] if isinstance(to.partition_by, str) else list(to.partition_by)
        frame.write.parquet(os.fspath(to.path), mode=to.mode, partitionBy=columns or None)


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


def _keep_what_is_read(frame: DataFrame, to: ToParquet) -> None:
    """Spark empties the directory before it reads, and then there is neither the old nor the new."""
    place = _place(to.path)
    for file in frame.inputFiles():  # URIs, whichever way the paths were written
        if _place(unquote(file)).startswith(f"{place}/"):
            raise ConfigurationError(
                "to", os.fspath(to.path), f"would lose what is read there, {file}: write to another directory"
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
    if isinstance(source, FromParquet) and isinstance(to, ToParquet) and _place(to.path) in map(_place, _paths(source)):
        raise ConfigurationError("to", os.fspath(to.path), "is what is read: write to another directory")
    if isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_one_cluster(source, to):
        names = topic_names(source.topics)
        if to.topic in names:
            raise ConfigurationError(
                "to", to.topic, "is what is read, and would have all of it twice: take another topic"
            )


def _check_topics(spark: SparkSession, source: FromTopic | FromParquet, to: ToTopic | ToParquet) -> None:
    """Spark itself would create a topic that is missing, or wait for it for a minute."""
    together = isinstance(source, FromTopic) and isinstance(to, ToTopic) and _is_one_cluster(source, to)
    same = isinstance(to, ToTopic) and to.same_partitions
    inputs: Mapping[str, int] = {}
    if isinstance(source, FromTopic):
        outputs = [to.topic] if together and isinstance(to, ToTopic) else []
        inputs = _look(spark, source, topic_names(source.topics), outputs, same_partitions=same).partitions
        _check_offsets(source)
    if isinstance(to, ToTopic) and not together:
        count = _look(spark, to, [to.topic], [], same_partitions=False).partitions[to.topic]
        if same and (sentence := other_partitions(to.topic, count, inputs)):
            raise CheckFailed([sentence])


def _check_offsets(source: FromTopic) -> None:
    """Spark would wait two minutes for records that are not there yet, and then speak of lost data."""
    topics = topic_names(source.topics)
    starting_options(source.starting, topics, streaming=False, past_the_end="latest")  # that they are positions
    ending_options(source.ending, topics)
    given = {
        (name, topic, partition): place
        for name, position in (("starting", source.starting), ("ending", source.ending))
        for topic, places in (position.items() if isinstance(position, Mapping) else ())
        for partition, place in places.items()
        if isinstance(place, int)
    }
    if not given:
        return
    logs = survey(source.bootstrap_servers, topics, timeout=_ANSWER, client_options=source.client_options)
    beyond = [
        f'{name} of {topic}-{partition} is offset {place}, and the log ends at {logs[topic][partition].end}: "latest" '
        "reads up to there"
        for (name, topic, partition), place in given.items()
        if partition in logs.get(topic, {}) and place > logs[topic][partition].end
    ]
    if beyond:
        raise CheckFailed(beyond)


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


def _place(path: Path) -> str:
    """A path as it can be compared: local ones whole, without ``file:``."""
    text = os.fspath(path)
    is_elsewhere = re.match(r"(?!file:)\w[\w+.-]*:/", text)
    return text.rstrip("/") if is_elsewhere else os.path.realpath(re.sub("^file:/*", "/", text))
