"""What read_topic and sink_options tell Spark, and what they refuse. A recorder stands in for Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.topics import read_topic, sink_options

SERVERS = "broker:9092"


class Recorder:
    """Remembers what a reader is told."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    @property
    def read(self) -> Recorder:
        self.told["how"] = "batch"
        return self

    @property
    def readStream(self) -> Recorder:  # noqa: N802 - Spark's name
        self.told["how"] = "stream"
        return self

    def format(self, name: str) -> Recorder:
        self.told["format"] = name
        return self

    def options(self, **options: str) -> Recorder:
        self.told |= options
        return self

    def load(self) -> Recorder:
        return self


def told(topics: Any = "raw", **arguments: Any) -> dict[str, str]:
    """What Spark is told."""
    recorder = Recorder()
    read_topic(cast(SparkSession, recorder), topics, bootstrap_servers=SERVERS, **arguments)
    return recorder.told


def test_what_is_read_by_default() -> None:
    """A stream from the beginning, without records of transactions that are aborted or open, and with headers."""
    assert told() == {
        "how": "stream",
        "format": "kafka",
        "kafka.bootstrap.servers": SERVERS,
        "subscribe": "raw",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def test_a_batch_of_several_topics() -> None:
    """With an end, and options in Spark's spelling."""
    read = told(["raw", "weather"], streaming=False, ending="latest", options={"failOnDataLoss": False})
    assert (read["how"], read["subscribe"], read["endingOffsets"]) == ("batch", "raw,weather", "latest")
    assert read["failOnDataLoss"] == "false"


def test_the_rate_of_a_stream() -> None:
    """Offsets for each micro-batch."""
    assert told(per_trigger=7_000)["maxOffsetsPerTrigger"] == "7000"


@pytest.mark.parametrize(
    "option", ["minPartitions", "maxRecordsPerPartition", "minpartitions", "maxrecordsperpartition"]
)
def test_what_breaks_the_order_of_keys_is_refused_unless_no_order_is_wanted(option: str) -> None:
    """In any spelling, since Spark's options know no case; the message says why and what to do."""
    with pytest.raises(ConfigurationError, match=rf"(?i){option}=16: it splits a partition .*keep_key_order=False"):
        told(options={option: 16})
    assert told(options={option: 16}, keep_key_order=False)[option] == "16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": "raw,weather"}, r'topics=.*\["flights", "weather"\]'),
        ({"topics": []}, "topics="),
        ({"topics": ["raw", 1]}, "topics="),
        ({"topics": None}, "topics="),
        ({"isolation": "committed"}, "isolation=.*must be one of read_committed, "),
        ({"per_trigger": 0}, "per_trigger=0: must be a whole number of at least 1"),
        ({"per_trigger": True}, "per_trigger=True"),
        ({"per_trigger": 5, "streaming": False}, "per_trigger=5: is for streams"),
        ({"ending": "latest"}, r"ending=.*is for batches.*availableNow"),
        ({"options": {"startingoffsets": "latest"}}, "options startingoffsets='latest': use starting"),
        ({"options": {"kafka.isolation.level": "x"}}, "use isolation"),
        ({"options": {"subscribePattern": "x"}}, "name the topics"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], message: str) -> None:
    """The option, what was found, and what to do."""
    with pytest.raises(ConfigurationError, match=message):
        told(**arguments)


def test_the_options_of_a_sink() -> None:
    """What a declared pipeline's sink needs; ours are not to be set twice, and servers have a port."""
    options = sink_options("work", bootstrap_servers=SERVERS, options={"kafka.linger.ms": 5})
    assert options == {"kafka.bootstrap.servers": SERVERS, "topic": "work", "kafka.linger.ms": "5"}
    with pytest.raises(ConfigurationError, match="options topic='other': name the topic"):
        sink_options("work", bootstrap_servers=SERVERS, options={"topic": "other"})
    with pytest.raises(ConfigurationError, match="host:port"):
        sink_options("work", bootstrap_servers="broker")


def test_an_executor_that_imports_it_loads_no_kafka_client() -> None:
    """Whatever of it: each Python worker of Spark imports what a handler needs, and a client would cost it 0.1 s."""
    program = (
        "import importlib, pkgutil, sys\n"
        "import aioparallel.spark as spark\n"
        "light = sorted(n for n in sys.modules if n.split('.')[0] in ('rich', 'grpc'))\n"
        "for module in pkgutil.iter_modules(spark.__path__, 'aioparallel.spark.'):\n"
        "    if '.group_' not in module.name:  # what commits for a listener, on the driver\n"
        "        importlib.import_module(module.name)\n"
        "print([name for name in ('aiokafka', 'confluent_kafka', 'cramjam') if name in sys.modules] + light)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[]"
