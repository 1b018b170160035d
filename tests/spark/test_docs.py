"""The programs of docs/spark.md, as they stand there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.testing import LocalKafka
from tests.load.topics import read_all
from tests.spark.topics import Message, fill

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(word: str, **names: object) -> None:
    """The one that has this word, as a script would be, in the session that is there."""
    (found,) = [str(one) for one in PROGRAMS if word in one]
    exec(compile(found, word, "exec"), {"__name__": "__main__", **names})


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


@pytest.mark.real
def test_topics_and_progress(spark: SparkSession, local_kafka: LocalKafka, tmp_path: Path) -> None:
    """Every record goes from one topic to the other, with its headers and where it came from; and a listener hears."""
    servers = local_kafka.bootstrap_servers
    for topic in ("raw", "work"):
        asyncio.run(local_kafka.create_topic(topic, 2))
    fill(servers, "raw", [Message(b"k%d" % (n % 5), b"value %d" % n, [("trace", b"t")]) for n in range(200)])
    run("write_topic(enriched", SERVERS=servers, CHECKPOINT=str(tmp_path / "checkpoint"))
    written = asyncio.run(read_all(servers, "work"))
    assert sorted(record.value or b"" for record in written) == sorted(b"VALUE %d" % n for n in range(200))
    assert all(
        {"trace", "src-topic", "src-partition", "src-offset"} <= dict(record.headers).keys() for record in written
    )
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    run("with ProgressListener(", SERVERS=servers, CHECKPOINT=str(tmp_path / "other"), spark=spark, frame=frame)
    for query in spark.streams.active:
        query.stop()


def test_handlers_in_tests() -> None:
    """Without Spark."""
    run("run_locally")
