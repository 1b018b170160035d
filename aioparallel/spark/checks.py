"""Checks whether a pipeline has what it needs before it starts: Spark reports some of it late, and some never."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from aioparallel.config.unknown_options import refuses_others
from aioparallel.jvm.java_runtime import MINIMUM_JAVA
from aioparallel.records.errors import AioparallelError, CheckFailed, ConfigurationError
from aioparallel.spark.connector_options import READING
from aioparallel.spark.logs import Log, survey
from aioparallel.spark.samples import Sampled, misfits
from aioparallel.spark.spark_session import connector_trouble, java_version, summary_of, task_slots
from aioparallel.spark.topics import read_topic, topic_names
from aioparallel.spark.workers import worker_trouble

__all__ = ["Checked", "check", "other_partitions"]


@dataclass(frozen=True)
class Checked:
    """What was checked and is right."""

    java: str
    """Version of the Java that runs Spark."""
    partitions: Mapping[str, int]
    """Number of partitions by topic."""
    sampled: Mapping[str, int]
    """Number of records of each input that were read with Spark, and with the schema if one was given."""
    slots: int | None
    """Tasks that run at once, in real-time mode; None: not checked."""


@refuses_others
def check(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    topics: str | Sequence[str],
    outputs: str | Sequence[str] = (),
    schema: StructType | str | None = None,
    same_partitions: bool = True,
    real_time: bool = False,
    slots: int | None = None,
    sample: int = 100,
    timeout: float = 30.0,
    options: Mapping[str, object] | None = None,
    client_options: Mapping[str, object] | None = None,
) -> Checked:
    """Check everything that a pipeline from ``topics`` to ``outputs`` needs. Takes seconds: it runs small Spark jobs.

    * The session has the Kafka connector, and Java is new enough.
    * Spark's Python workers have aioparallel and pyarrow. Without PYSPARK_PYTHON, Spark starts them with the python3 of
      the PATH, which may be another one than this program's.
    * No output is an input, and all topics exist.
    * ``same_partitions`` (default): each output has as many partitions as each input. Keys need this to keep their
      partition number; set False if nothing relies on it.
    * Spark can read the inputs: the last ``sample`` records of each, 100 by default; 0 reads none.
    * ``schema`` (a StructType, or DDL such as ``"tailnum string, delay int"``): from_json with it reads their values.
    * ``real_time``: Spark has a task slot for each partition of the inputs. Without enough slots it reads only part of
      them without an error: 266 of 500 records with one slot for two partitions. ``slots``: the number of slots, if
      Spark's settings do not say it or other queries share them.

    ``timeout``: seconds for each request to the cluster. ``options``: of Spark's source, as for :func:`read_topic`;
    ``client_options``: of aiokafka's consumer. A cluster with TLS or SASL needs both.

    Raises CheckFailed with all findings and what to do about each. Creates nothing, and joins no group.
    """
    inputs, others = topic_names(topics), topic_names(outputs) if outputs else []
    checks = _Check(spark, bootstrap_servers, timeout)
    has_connector = checks.session()
    checks.circles(inputs, others)
    checks.topics([*inputs, *others], client_options)
    if same_partitions:
        checks.same_partitions(inputs, others)
    if checks.options(options) and has_connector and sample:
        for topic in inputs:
            checks.sample(topic, schema, sample, options or {})
    if real_time:
        checks.slots(slots, inputs)
    if checks.wrong:
        raise CheckFailed(checks.wrong)
    return checks.found


class _Check:
    """Collects findings and results."""

    def __init__(self, spark: SparkSession, servers: str, timeout: float) -> None:
        self.wrong: list[str] = []
        self.found = Checked("", {}, {}, None)
        self._spark = spark
        self._servers = servers
        self._timeout = timeout
        self._logs: dict[str, dict[int, Log]] = {}

    def session(self) -> bool:
        """Check the session. Returns whether it has the connector."""
        trouble = connector_trouble(self._spark)
        if trouble is not None:
            self.wrong.append(trouble)
        java = java_version(self._spark)
        if int(re.split(r"\D", java)[0]) < MINIMUM_JAVA:
            self.wrong.append(f"Spark runs on Java {java}: let JAVA_HOME name Java {MINIMUM_JAVA} or newer")
        self.found = replace(self.found, java=java)
        if (of_workers := worker_trouble(self._spark)) is not None:
            self.wrong.append(of_workers)
        return trouble is None

    def circles(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Check that no output is an input."""
        self.wrong += [
            f"{topic} is both read and written, so each of its records would be read again; write to another topic"
            for topic in dict.fromkeys(outputs)
            if topic in inputs
        ]

    def topics(self, names: Sequence[str], client_options: Mapping[str, object] | None) -> None:
        try:
            self._logs = survey(self._servers, names, timeout=self._timeout, client_options=client_options)
        except (AioparallelError, OSError) as error:
            self.wrong.append(f"{error}; so nothing is known of {', '.join(names)}")
            return
        self.wrong += [
            f"topic {name} does not exist at {self._servers}: create it, or check the name and the permission to see it"
            for name in dict.fromkeys(names)
            if name not in self._logs
        ]
        self.found = replace(self.found, partitions={name: len(log) for name, log in self._logs.items()})

    def same_partitions(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        counts = self.found.partitions
        known = {topic: counts[topic] for topic in inputs if topic in counts}
        for output in outputs:
            if output in counts and (sentence := other_partitions(output, counts[output], known)):
                self.wrong.append(sentence)

    def options(self, given: Mapping[str, object] | None) -> bool:
        """Check the options of Spark's source. Returns whether they are right."""
        try:
            READING.check(given)
        except ConfigurationError as error:
            self.wrong.append(str(error))
            return False
        return True

    def sample(self, topic: str, schema: StructType | str | None, count: int, options: Mapping[str, object]) -> None:
        """Check that Spark reads the last records of a topic, and the schema their values."""
        if topic not in self._logs:
            return
        text = F.col("value").cast("string")
        try:
            parsed = F.lit(None) if schema is None else F.from_json(text, schema)
            last = self._last(topic, count, options)
            frame = last.select("partition", "offset", text.alias("text"), parsed.alias("parsed"))
            rows, kind = frame.collect(), frame.schema["parsed"].dataType
        except Exception as error:  # Spark's errors, and Java's through the gateway
            what = "with these options" if schema is None else "with these options and this schema"
            self.wrong.append(f"Spark cannot read {topic} {what}: {summary_of(error)}")
            return
        self.found = replace(self.found, sampled={**self.found.sampled, topic: len(rows)})
        if isinstance(kind, StructType):
            # from_json adds this column itself.
            corrupt = self._spark.conf.get("spark.sql.columnNameOfCorruptRecord", "_corrupt_record")
            kind = StructType([field for field in kind if field.name != corrupt])
            records = [
                Sampled(f"{topic}-{row.partition} offset {row.offset}", row.text, _dictionary(row))
                for row in rows
                if row.text is not None
            ]
            self.wrong += [f"{topic}: {sentence}" for sentence in misfits(kind, records)]

    def _last(self, topic: str, count: int, options: Mapping[str, object]) -> DataFrame:
        """About the last ``count`` records of a topic, equally many from each partition."""
        log = self._logs[topic]
        each = math.ceil(count / len(log))
        return read_topic(
            self._spark,
            topic,
            bootstrap_servers=self._servers,
            streaming=False,
            starting={topic: {partition: max(one.beginning, one.end - each) for partition, one in log.items()}},
            ending={topic: {partition: one.end for partition, one in log.items()}},
            options={**_deadlines(self._timeout), **options},
        )

    def slots(self, given: int | None, inputs: Sequence[str]) -> None:
        counts = {topic: self.found.partitions[topic] for topic in inputs if topic in self.found.partitions}
        if not counts:
            return
        needed = sum(counts.values())
        slots = task_slots(self._spark) if given is None else given
        self.found = replace(self.found, slots=slots)
        if slots is None:
            self.wrong.append(f"Spark's settings do not say how many task slots there are: give slots={needed}")
        elif slots < needed:
            shown = ", ".join(f"{topic} {count}" for topic, count in counts.items())
            self.wrong.append(
                f"real-time mode needs a task slot for each partition, {needed} in all ({shown}), but there are only "
                f"{slots}: the other partitions would never be read; give Spark more cores (local[{needed}], or "
                "executors), or use micro-batches"
            )


def other_partitions(output: str, count: int, inputs: Mapping[str, int]) -> str | None:
    """The finding if a topic has another number of partitions than its inputs; else None."""
    differing = [f"{topic} has {partitions}" for topic, partitions in inputs.items() if partitions != count]
    if not differing:
        return None
    return (
        f"{output} has {count} partitions and {', '.join(differing)}: the records of a key change their partition; "
        "make the numbers equal, or set same_partitions=False if nothing relies on it"
    )


def _deadlines(timeout: float) -> dict[str, object]:
    """Shortens the client's timeout of a minute and its three retries."""
    milliseconds = max(1, round(timeout * 1000))
    times = {f"kafka.{name}.timeout.ms": milliseconds for name in ("default.api", "request")}
    return {**times, "fetchOffset.numRetries": 1}


def _dictionary(row: Row) -> dict[str, Any] | None:
    return None if row.parsed is None else row.parsed.asDict(recursive=True)
