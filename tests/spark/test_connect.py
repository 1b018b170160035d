"""Topics over Spark Connect and in declared pipelines, which are always Connect."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import fill
from tests.support.kafka.reading import read_all
from tests.support.spark.settings import connect_address
from tests.support.spark.topics import NewTopic, counted

PROGRAM_TIMEOUT = 300.0


@pytest.mark.spark
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("own_server", [False, True], ids=["ours", "its own"])
def test_over_connect_and_in_a_declared_pipeline(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path, own_server: bool
) -> None:
    """check, read_topic, write_topic and checkpoint_status over Connect, batch and stream; read_topic, outgoing and
    sink_options in query functions, where Spark refuses to analyse a plan. Every record arrives, once each time."""
    servers, raw, work, piped = local_kafka.bootstrap_servers, new_topic(2), new_topic(2), new_topic(2)
    fill(servers, raw, counted(40))
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java(SPARK_MODULES).home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_TESTING": "1",  # a free port: without it every local server of Connect takes 15002
    }
    program = [sys.executable, "-m", "tests.support.spark.connect_program"]
    program += ["local[2]" if own_server else connect_address(spark), servers, raw, work, piped, str(tmp_path)]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found == {
        "kind": "pyspark.sql.connect.session",
        "sampled": 40,
        "slots": 2,
        "lag": [0, 0],
        "committed": 40,
        "backfilled": {"whole": [5, 5], "parts": [10, 10], "left": [0]},
    }
    copied = asyncio.run(read_all(servers, work))
    assert len(copied) == 80
    assert len({(record.value, dict(record.headers)["src-offset"]) for record in copied}) == 80
    records = asyncio.run(read_all(servers, piped))
    assert sorted(json.loads(record.value or b"")["n"] for record in records) == list(range(40))
    assert {len(dict(record.headers)["src-digest"] or b"") for record in records} == {16}
