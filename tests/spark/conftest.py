"""One Spark for all tests here: a JVM of its own for each pytest process, gone when the tests are."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.records.errors import JarsMissing, JavaNotFound
from aioparallel.spark.connector_jars import kafka_jars
from aioparallel.testing import LocalKafka
from tests.support.spark.class_archive import end_jvm
from tests.support.spark.settings import ALONE, SERVING
from tests.support.spark.topics import NewTopic


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in a JVM beside this process, ``local[2]``, with the Kafka connector. Takes 5 to 9 s. It also serves Spark
    Connect: see ``connect_address``.

    Its files (warehouse, scratch space) are pytest's temporary ones. Where there is no Java, or the jars cannot be
    had, the tests are skipped; in CI they fail.
    """
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        try:
            patch.setenv("JAVA_HOME", str(find_java(SPARK_MODULES).home))
            jars = kafka_jars()
        except (JavaNotFound, JarsMissing) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"Apache Spark cannot be started: {error}")
        paths = filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # for the daemon of workers
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder: Any = SparkSession.builder
        session: SparkSession = (
            builder.master("local[2]")
            .appName("tests")
            .config("spark.jars", ",".join(jars))
            .config(map=ALONE)
            .config(map=SERVING)
            .config("spark.python.daemon.module", "tests.support.spark.warm_daemon")
            .config("spark.log.level", "OFF")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()
            end_jvm()


@pytest.fixture(scope="session", autouse=True)
def plain_log() -> None:
    """pyspark's loggers give each handler their own format, JSON. pytest adds its own handler to those that do not
    propagate: what any later test of this process sees of the log would be JSON. So they add handlers as others do,
    until the process ends: the loggers stay."""
    pytest.MonkeyPatch().setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)


@pytest.fixture
def new_topic(request: pytest.FixtureRequest, local_kafka: LocalKafka) -> NewTopic:
    """A function: ``new_topic(partitions=1)`` makes a topic of its own on ``local_kafka``; its name."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:60]

    def create(partitions: int = 1) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        # Records with times of their own are older than a broker keeps them, and it looks every few minutes.
        asyncio.run(local_kafka.create_topic(name, partitions, {"retention.ms": "-1"}))
        return name

    return create
