"""What a pipeline needs, looked at before it starts: Spark tells some of it late, and some never."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from aioparallel.errors import AioparallelError, CheckFailed
from aioparallel.jvm.java_runtime import MINIMUM_JAVA
from aioparallel.spark.logs import Log, survey
from aioparallel.spark.samples import Sampled, misfits
from aioparallel.spark.sessions import connector_trouble, java_version, task_slots, told
from aioparallel.spark.topics import read_topic, topic_names

__all__ = ["Checked", "check"]


@dataclass(frozen=True)
class Checked:
    """What was found, and found to be right."""

    java: str
    """Version of the Java that runs Spark."""
    partitions: Mapping[str, int]
    """Of each topic."""
    sampled: Mapping[str, int]
    """Records of each input that were read with Spark (and with the schema, if one was given)."""
    slots: int | None
    """Tasks that run at once, in real-time mode; None: not looked at."""


@dataclass
class _Look:
    """A check that is going on: what is wrong so far, and what was found."""

    wrong: list[str] = field(default_factory=list)
    java: str = ""
    sampled: dict[str, int] = field(default_factory=dict)
    slots: int | None = None


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
    """Look at everything a pipeline from ``topics`` to ``outputs`` needs. Seconds, since it runs small jobs of Spark.

    * The session has the Kafka connector, and Java is new enough.
    * All topics exist. ``same_partitions`` (default): each output has as many partitions as each input, which a key
      needs to keep its partition's number; set it False where a number of one's own is wanted.
    * Spark can read the inputs: the last ``sample`` records of each, 100 by default; 0 reads none.
    * ``schema`` (a StructType, or DDL as in ``"tailnum string, delay int"``): from_json with it reads their values.
    * ``real_time``: Spark has a task slot for each partition of the inputs. It needs them and does not say so: with one
      slot for two partitions, 266 of 500 records came and no error. ``slots``: how many this pipeline has, where
      Spark's settings do not tell, or other queries run beside it.

    ``timeout``: seconds for each question to the cluster. ``options``: of Spark's source, as for :func:`read_topic`;
    ``client_options``: of aiokafka's consumer. Both are needed where the cluster wants TLS or SASL.

    Raises CheckFailed with all that is wrong, and what to do about each. Creates nothing, and joins no group.
    """
    look = _Look()
    inputs, others = topic_names(topics), topic_names(outputs) if outputs else []
    if (trouble := connector_trouble(spark)) is not None:
        look.wrong.append(trouble)
    look.java = java_version(spark)
    if int(re.split(r"\D", look.java)[0]) < MINIMUM_JAVA:
        look.wrong.append(f"Spark runs on Java {look.java}: let JAVA_HOME name Java {MINIMUM_JAVA} or newer")
    logs = _topics(look, bootstrap_servers, [*inputs, *others], timeout, client_options)
    if same_partitions:
        _same_partitions(look, logs, inputs, others)
    if trouble is None and sample:
        reading = _deadlines(timeout) | dict(options or {})
        for topic in inputs:
            if topic in logs:
                _sample(spark, look, bootstrap_servers, topic, logs[topic], schema, sample, reading)
    if real_time and logs:
        _slots(spark, look, slots, {topic: len(logs[topic]) for topic in inputs if topic in logs})
    if look.wrong:
        raise CheckFailed(look.wrong)
    return Checked(look.java, {topic: len(log) for topic, log in logs.items()}, look.sampled, look.slots)


def _topics(
    look: _Look, servers: str, names: Sequence[str], timeout: float, client_options: Mapping[str, object] | None
) -> dict[str, dict[int, Log]]:
    try:
        logs = survey(servers, names, timeout=timeout, client_options=client_options)
    except (AioparallelError, OSError) as error:
        look.wrong.append(f"{error}; so nothing is known of {', '.join(names)}")
        return {}
    for name in dict.fromkeys(names):
        if name not in logs:
            look.wrong.append(
                f"topic {name} does not exist at {servers}: create it, or check the name and the permission to see it"
            )
    return logs


def _same_partitions(
    look: _Look, logs: Mapping[str, Mapping[int, Log]], topics: Sequence[str], outputs: Sequence[str]
) -> None:
    for output in outputs:
        others = [
            f"{topic} has {len(logs[topic])}"
            for topic in topics
            if topic in logs and output in logs and len(logs[topic]) != len(logs[output])
        ]
        if others:
            look.wrong.append(
                f"{output} has {len(logs[output])} partitions and {', '.join(others)}: the records of a key change "
                "their partition on the way; make them equal, or set same_partitions=False where nothing relies on it"
            )


def _deadlines(timeout: float) -> dict[str, object]:
    """Spark's client asks for a minute, and three times over."""
    milliseconds = max(1, round(timeout * 1000))
    times = {f"kafka.{name}.timeout.ms": milliseconds for name in ("default.api", "request")}
    return {**times, "fetchOffset.numRetries": 1}


def _sample(
    spark: SparkSession,
    look: _Look,
    servers: str,
    topic: str,
    log: Mapping[int, Log],
    schema: StructType | str | None,
    count: int,
    options: Mapping[str, object],
) -> None:
    each = math.ceil(count / len(log))
    text = F.col("value").cast("string")
    parsed = F.lit(None) if schema is None else F.from_json(text, schema)
    try:
        last = read_topic(
            spark,
            topic,
            bootstrap_servers=servers,
            streaming=False,
            starting={topic: {partition: max(one.beginning, one.end - each) for partition, one in log.items()}},
            ending={topic: {partition: one.end for partition, one in log.items()}},
            options=options,
        )
        frame = last.select("partition", "offset", text.alias("text"), parsed.alias("parsed"))
        rows, kind = frame.collect(), frame.schema["parsed"].dataType
    except Exception as error:  # Spark's own, and Java's through the gateway
        what = "with these options" if schema is None else "with these options and this schema"
        look.wrong.append(f"Spark cannot read {topic} {what}: {told(error)}")
        return
    look.sampled[topic] = len(rows)
    if isinstance(kind, StructType):
        sampled = [
            Sampled(f"{topic}-{row.partition} offset {row.offset}", row.text, _dictionary(row))
            for row in rows
            if row.text is not None
        ]
        look.wrong += [f"{topic}: {sentence}" for sentence in misfits(kind, sampled)]


def _dictionary(row: Any) -> dict[str, Any] | None:
    return None if row.parsed is None else row.parsed.asDict(recursive=True)


def _slots(spark: SparkSession, look: _Look, given: int | None, partitions: Mapping[str, int]) -> None:
    look.slots = task_slots(spark) if given is None else given
    needed = sum(partitions.values())
    if look.slots is None:
        look.wrong.append(f"Spark does not tell its task slots: say how many this pipeline has, slots={needed} or more")
    elif look.slots < needed:
        counts = ", ".join(f"{topic} {count}" for topic, count in partitions.items())
        look.wrong.append(
            f"real-time mode needs a task slot for each partition, {needed} in all ({counts}), and there are "
            f"{look.slots}: the others would never be read; give Spark more cores (local[{needed}], or executors), or "
            "use micro-batches"
        )
