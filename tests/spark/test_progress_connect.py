"""The listener over Spark Connect, on Apache Kafka: a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import fill
from tests.support.spark.settings import connect_address
from tests.support.spark.topics import NewTopic, counted
from tests.support.waiting import DEADLINE

from .test_progress import offsets

pytestmark = [pytest.mark.spark, pytest.mark.real]

CONNECT = """
import json, sys
from pyspark.sql import SparkSession
from aioparallel.spark.progress import ProgressListener

remote, servers, topic, group, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
with ProgressListener(every=0, commit_group=group, bootstrap_servers=servers) as listener:
    spark.streams.addListener(listener)
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 400).load()
    query = stream.writeStream.format("noop").queryName("flights").trigger(availableNow=True)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
(figure,) = listener.snapshot()
print(json.dumps([figure.state, figure.batches, figure.total_rows, figure.lag, figure.started_at is not None]))
raise SystemExit(7)  # without spark.stop()
"""


def test_spark_connect(spark: SparkSession, new_topic: NewTopic, local_kafka: LocalKafka, tmp_path: Path) -> None:
    """The same over Spark Connect, in a process of its own, which also ends: there the block removes the listener,
    whose thread would keep a process that does not stop its session."""
    servers, topic, group = local_kafka.bootstrap_servers, new_topic(3), f"lag-{uuid.uuid4().hex}"
    fill(servers, topic, counted(1_000))
    arguments = [connect_address(spark), servers, topic, group, str(tmp_path / "checkpoint")]
    run = subprocess.run(
        [sys.executable, "-c", CONNECT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable},
    )
    assert run.returncode == 7, run.stderr[-4_000:]
    assert json.loads(run.stdout.splitlines()[-1]) == ["terminated", 3, 1_000, 0, True]
    assert "flights: ended, 1,000 rows in 3 batches" in run.stderr
    assert sum(offsets(servers, group).values()) == 1_000
