"""A Python worker of Spark without aioparallel, played by a process that does not find it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import IntegerType, StructType

from aioparallel.spark.column import async_udf
from aioparallel.spark.operator import parallel_map
from aioparallel.spark.workers import _NEEDED, _asking

WORKER = """
import sys
from importlib import machinery

hidden = sys.argv[1:]

class Finder(machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [machinery.BuiltinImporter, machinery.FrozenImporter, Finder]
from pyspark import cloudpickle
print(cloudpickle.loads(sys.stdin.buffer.read())(None))
"""


def in_a_worker(function: object, *hidden: str) -> subprocess.CompletedProcess[bytes]:
    """Unpickle the function in another process that has no such packages, and call it."""
    data = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    return subprocess.run(
        [sys.executable, "-c", WORKER, *hidden], input=data, capture_output=True, check=False, timeout=120
    )


async def same(row: Any) -> Any:
    return row


FUNCTIONS = {
    "parallel_map": parallel_map(same, schema="n int").on_executor(StructType().add("n", IntegerType())),
    "async_udf": async_udf(returns="int")(same).on_executor(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("missing", _NEEDED)
def test_a_function_for_tasks_names_the_variable(name: str, missing: str) -> None:
    """The error says which Python the worker runs, and what sets it."""
    run: Any = FUNCTIONS[name]
    if name == "async_udf":
        run.__annotations__ = {"arrays": pa.Array}  # as in a column
    ran = in_a_worker(run, missing)
    last = ran.stderr.decode().strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: No module named '{missing}': this worker of Spark runs")
    assert sys.executable in last
    assert "PYSPARK_PYTHON" in last


def test_the_question_of_a_check_needs_nothing() -> None:
    """It runs in a worker without aioparallel and pyarrow, and answers which of them are missing."""
    question = _asking(_NEEDED)
    assert in_a_worker(question, *_NEEDED).stdout.decode().splitlines() == [sys.executable, *_NEEDED]
    assert in_a_worker(question, "pyarrow").stdout.decode().splitlines() == [sys.executable, "pyarrow"]
    assert in_a_worker(question).stdout.decode().splitlines() == [sys.executable]
