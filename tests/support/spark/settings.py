"""What the sessions and streams of all tests here have in common."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from tests.support.spark.class_archive import archive_options

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that lives a minute, on two cores that it shares with a broker."""

STREAM_TIMEOUT: Final = 120
"""Seconds for a stream to take what is there."""

ALONE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{QUICK_START} {archive_options()}",
}
"""For ``builder.config(map=...)``: a session that serves no pages and talks to loopback only."""

SERVING: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
"""The same for a classic session whose JVM is also a server of Spark Connect, on a free port."""


def connect_address(spark: SparkSession) -> str:
    """For ``builder.remote()`` in another process, where ``spark`` has ``SERVING``: a JVM that is warm."""
    jvm: Any = spark.sparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"
