"""Workers that run another Python than the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.records.errors import JavaNotFound

pytestmark = [pytest.mark.spark, pytest.mark.real]

PROGRAM = """
import json
import sys

sys.path[:0] = {path!r}  # of the driver alone

from pyspark.sql import SparkSession

from aioparallel.spark import parallel_map
from aioparallel.spark.workers import worker_trouble

async def same(row):
    return row

spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
said = [worker_trouble(spark)]
try:
    spark.range(1).transform(parallel_map(same, schema="id bigint")).collect()
except Exception as error:
    said.append(str(error))
spark.stop()
print(json.dumps(said))
"""


@pytest.mark.slow
def test_workers_of_another_python(tmp_path: Path) -> None:
    """The check and the error of a task both name the Python, what it lacks, and the variable that sets it."""
    try:
        java = str(find_java(SPARK_MODULES).home)
    except JavaNotFound as error:
        pytest.skip(f"Apache Spark cannot be started: {error}")
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    (tmp_path / "program.py").write_text(PROGRAM.format(path=sys.path))
    environment = {**os.environ, "JAVA_HOME": java, "PYSPARK_PYTHON": bare}
    environment.pop("PYTHONPATH", None)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=300
    )
    checked, failed = json.loads(ran.stdout.splitlines()[-1])
    assert checked.startswith(
        f"Spark's Python workers run {bare}, without aioparallel and pyarrow: let the environment"
    )
    assert f"No module named 'aioparallel': this worker of Spark runs {bare}. Let the environment" in failed
    for text in (checked, failed):
        assert "PYSPARK_PYTHON" in text
