"""The programs of docs/spark.md, as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(word: str) -> None:
    """The one that has this word, as a script would be, in the session that is there."""
    (found,) = [str(one) for one in PROGRAMS if word in one]
    exec(compile(found, word, "exec"), {"__name__": "__main__"})


def test_the_operator(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """All flights."""
    run("repartition_by_key")
    assert "2000 flights" in capfd.readouterr().out


def test_rows_that_fail(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """Are told apart."""
    run("split(")
    assert "90 fine, 10 failed:\n3 ValueError: no such thing: 3\n13 " in capfd.readouterr().out


def test_clients() -> None:
    """It can be sent."""
    run("aiohttp")


def test_a_column(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """All pages."""
    run("async_udf")
    assert "1000 pages" in capfd.readouterr().out


def test_a_sink(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order once, with its key."""
    (module,) = [str(one) for one in PROGRAMS if "# notifications.py" in one]
    file = tmp_path / "said"
    speaks = f"def print(*words):\n    with open({str(file)!r}, 'a') as file:\n"
    speaks += "        file.write(' '.join(map(str, words)) + '\\n')\n"
    (tmp_path / "notifications.py").write_text(speaks + module)
    spark.addArtifacts(str(tmp_path / "notifications.py"), pyfile=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    run("register_sink")
    said = re.findall(r"order (\d+) \{'Idempotency-Key': '(write-\w+-\d+-\d+)'\}", file.read_text())
    assert sorted(int(order) for order, _ in said) == list(range(100))
    assert len({key for _, key in said}) == 100
    sys.modules.pop("notifications", None)


def test_handlers_in_tests() -> None:
    """Without Spark."""
    run("run_locally")
