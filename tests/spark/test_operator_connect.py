"""The operator over Spark Connect: a program of its own, beside which there can be no session of these tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.settings import connect_address

pytestmark = pytest.mark.spark

CONNECT = Path(__file__).parents[1] / "support" / "spark" / "operator_on_connect.py"


OWN = pytest.mark.slow
"""Servers that the program starts: without the connector, and with Python workers of either kind."""


@pytest.mark.parametrize(
    ("own_server", "reuse"),
    [(False, "true"), pytest.param(True, "true", marks=OWN), pytest.param(True, "false", marks=OWN)],
)
def test_spark_connect(spark: SparkSession, own_server: bool, reuse: str, tmp_path: Path) -> None:
    """All three forms, with Python workers that are kept and with new ones for each task."""
    remote = "local[2]" if own_server else connect_address(spark)
    command = [sys.executable, str(CONNECT), remote, reuse, str(tmp_path / "written")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=450, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["operator"] == said["column"] == said["sink"] == 1_000
    assert said["loaded"] == []
    if own_server:
        assert said["no_jars"] == [True] * 3  # reading a batch, a stream, writing: the session has no connector
    assert said["unreadable"] == [[7, "FF"]]
    assert "is string collate UTF8_LCASE" in said["refused"]
    assert r"OSError: no such file: \udcff" in said["failed"]
    assert said["column name"] == ["twice(seq, k)"]
    assert (said["workers"] <= 2) == (reuse == "true"), said
    # A worker that is kept opens once for all its tasks, and may be ended without a word. Spark may also let it go
    # after a task, and then it closes what it has opened, as one does that is not kept.
    if reuse == "true":
        assert said["closed"] <= said["opened"] == said["workers"], said
    else:
        assert said["closed"] == said["opened"] > 0, said
