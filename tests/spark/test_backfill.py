"""What is there, once more: from topics and files, to topics and files."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.records.errors import CheckFailed, ConfigurationError
from aioparallel.spark import parallel_map, repartition_by_key
from aioparallel.spark.backfill import FromParquet, FromTopic, ToParquet, ToTopic, backfill
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.spark.topics import NewTopic, counted

pytestmark = pytest.mark.spark
EXAMPLE = Path(__file__).parents[2] / "examples" / "backfill.py"
NOWHERE = "127.0.0.1:9"


def parse(records: DataFrame) -> DataFrame:
    """Numbers, with the key and the place of each."""
    number = F.get_json_object(F.col("value").cast("string"), "$.n").cast("int").alias("n")
    return records.select(F.col("key").cast("string").alias("key"), number, "topic", "partition", "offset")


async def double(row: dict[str, Any]) -> dict[str, Any]:
    """The handler."""
    await asyncio.sleep(0.001)
    return {**row, "value": json.dumps({"twice": 2 * row["n"]})}


COLUMNS = "key string, n int, topic string, partition int, offset bigint, value string"
doubled = parallel_map(double, schema=COLUMNS, key="key")


@pytest.mark.real
def test_a_range_of_offsets_to_parquet(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Those between the offsets and no others; what exists is not written over."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, raw, counted(50))
    part = FromTopic(raw, servers, {raw: {0: 10}}, {raw: {0: 30}})
    backfill(spark, part, parse, doubled, to=ToParquet(tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.n for row in rows) == list(range(10, 30))
    assert all(json.loads(row.value) == {"twice": 2 * row.n} for row in rows)
    with pytest.raises(Exception, match="already exists"):
        backfill(spark, part, parse, to=ToParquet(tmp_path / "out"))
    backfill(spark, part, parse, doubled, to=ToParquet(tmp_path / "out", "overwrite"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 20


@pytest.mark.real
def test_a_range_that_is_not_there(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Offsets behind the end are told at once (Spark waits two minutes for each task), and times that are exchanged."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, raw, counted(50))
    for start, end, what in ((40, 51, "ending"), (51, 50, "starting")):
        beyond = FromTopic(raw, servers, {raw: {0: start}}, {raw: {0: end}})
        with pytest.raises(CheckFailed, match=f"{what} of {raw}-0 is offset 51, but the log ends at 50"):
            backfill(spark, beyond, parse, to=ToParquet(tmp_path / "out"))
    exchanged = FromTopic(raw, servers, datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(ConfigurationError, match=r"ending=.*must be later than starting, 2026-02-01"):
        backfill(spark, exchanged, parse, to=ToParquet(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match=r"ending=.*must be"):
        backfill(spark, FromTopic(raw, servers, ending={raw: 50}), to=ToParquet(tmp_path / "out"))  # type: ignore[arg-type]
    backfill(spark, FromTopic(raw, servers, {raw: {0: 50}}, {raw: {0: 50}}), parse, to=ToParquet(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 0


@pytest.mark.real
def test_topic_to_topic(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """In the order of each key, in the partition of its number, with its place as headers. Times without any record
    are an empty range."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(2), new_topic(2)
    fill(servers, raw, counted(100))
    backfill(spark, FromTopic(raw, servers), parse, doubled, to=ToTopic(work, servers))
    last: dict[bytes | None, int] = {}
    for record in asyncio.run(read_all(servers, work)):
        twice = json.loads(record.value or b"")["twice"]
        assert last.get(record.key, -1) < twice
        last[record.key] = twice
        headers = dict(record.headers)
        assert headers["src-topic"] == raw.encode()
        assert headers["src-partition"] == str(record.partition).encode()
    assert len(last) == 20
    later = FromTopic(raw, servers, datetime(2100, 1, 1, tzinfo=UTC))
    backfill(spark, later, parse, doubled, to=ToTopic(work, servers))
    assert len(asyncio.run(read_all(servers, work))) == 100


@pytest.mark.real
def test_parquet_to_topic(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path) -> None:
    """Ordered by a step, since files have no order."""
    servers, work = local_kafka.bootstrap_servers, new_topic(3)
    rows = spark.range(60).selectExpr("concat('k', id % 5) as key", "cast(id as int) as n")
    rows.orderBy(F.desc("n")).write.parquet(str(tmp_path / "in"))

    async def told(row: dict[str, Any]) -> dict[str, Any]:
        return {"key": row["key"], "value": str(row["n"])}

    by_key = parallel_map(told, schema="key string, value string", key="key")
    steps = repartition_by_key("key", order_by="n"), by_key
    backfill(spark, FromParquet(tmp_path / "in"), *steps, to=ToTopic(work, servers))
    found: dict[bytes | None, list[int]] = {}
    for record in asyncio.run(read_all(servers, work)):
        found.setdefault(record.key, []).append(int(record.value or b""))
    assert found == {f"k{key}".encode(): list(range(key, 60, 5)) for key in range(5)}


@pytest.mark.real
def test_what_is_missing_is_said_before(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """A topic that is not there is not created, and one with other partitions needs a word."""
    servers, raw, narrow = local_kafka.bootstrap_servers, new_topic(2), new_topic(1)
    fill(servers, raw, counted(10))
    with pytest.raises(CheckFailed, match="topic no-such-topic does not exist"):
        backfill(spark, FromTopic(raw, servers), to=ToTopic("no-such-topic", servers))
    with pytest.raises(CheckFailed, match=r"has 1 partitions and .* has 2"):
        backfill(spark, FromTopic(raw, servers), to=ToTopic(narrow, servers))
    elsewhere = servers.replace("127.0.0.1", "localhost")  # as another cluster
    assert elsewhere != servers
    with pytest.raises(CheckFailed, match=r"has 1 partitions and .* has 2"):
        backfill(spark, FromTopic(raw, servers), to=ToTopic(narrow, elsewhere))
    backfill(spark, FromTopic(raw, servers), to=ToTopic(narrow, elsewhere, same_partitions=False))
    assert len(asyncio.run(read_all(servers, narrow))) == 10


def test_what_does_not_fit_together(spark: SparkSession, tmp_path: Path) -> None:
    """Each says what to do, before anything is read."""
    here, files = ToParquet(tmp_path / "out"), FromParquet(tmp_path)
    with pytest.raises(ConfigurationError, match="is a handler: give parallel_map"):
        backfill(spark, files, double, to=here)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a function from DataFrame"):
        backfill(spark, files, "clean", to=here)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"must be FromTopic\(...\)"):
        backfill(spark, "raw", to=here)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"must be ToTopic\(...\)"):
        backfill(spark, files, to="out")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be one of error, append, overwrite"):
        backfill(spark, files, to=ToParquet("out", "replace"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="write to another directory"):
        backfill(spark, files, to=ToParquet(f"file:{tmp_path}/", "overwrite"))
    with pytest.raises(ConfigurationError, match="name another topic"):
        backfill(spark, FromTopic(["a", "b"], NOWHERE), to=ToTopic("b", NOWHERE))
    with pytest.raises(ConfigurationError, match="must name a directory"):
        backfill(spark, FromParquet([]), to=here)
    spark.range(3).write.parquet(str(tmp_path / "in"))
    with pytest.raises(ConfigurationError, match="returned NoneType, and must return a DataFrame"):
        backfill(spark, FromParquet(tmp_path / "in"), lambda frame: frame.show(), to=here)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="returned a stream"):
        backfill(spark, FromParquet(tmp_path / "in"), lambda _: spark.readStream.format("rate").load(), to=here)


@pytest.mark.parametrize(
    ("read", "written"),
    [("in", "file://{}/in"), ("in/x=1", "{}/in"), ("in", "{}/in/x=1"), ("in/*/*.parquet", "{}/in"), ("in", "{}/link")],
)
def test_what_is_read_is_not_overwritten(spark: SparkSession, tmp_path: Path, read: str, written: str) -> None:
    """However the paths are written, and where one is within the other: Spark would have emptied it first."""
    (tmp_path / "link").symlink_to(tmp_path / "in")
    spark.range(3).write.parquet(str(tmp_path / "in" / "x=1"))
    with pytest.raises(ConfigurationError, match="write to another directory"):
        backfill(spark, FromParquet(tmp_path / read), to=ToParquet(written.format(tmp_path), "overwrite"))
    assert spark.read.parquet(str(tmp_path / "in")).count() == 3
    backfill(spark, FromParquet(tmp_path / read), to=ToParquet(tmp_path / "in2", "overwrite"))
    assert spark.read.parquet(str(tmp_path / "in2")).count() == 3


@pytest.mark.real
def test_a_topic_is_not_written_to_itself(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """By another address of the same cluster either."""
    servers, raw = local_kafka.bootstrap_servers, new_topic()
    for other in (servers, f"localhost:{servers.rpartition(':')[2]}"):
        with pytest.raises(
            ConfigurationError, match=f"to='{raw}': is also read, and would have all of its records twice"
        ):
            backfill(spark, FromTopic(raw, servers), to=ToTopic(raw, other))


@pytest.mark.real
def test_the_example(
    spark: SparkSession,
    local_kafka: LocalKafka,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """January's flights, by the time of their records."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(2)
    months = [int(datetime(2013, month, 15, tzinfo=UTC).timestamp() * 1000) for month in (1, 2)]
    flights = [
        Message(b"N%d" % (n % 7), b'{"tailnum": "N%d", "dep_delay": %d}' % (n % 7, n), timestamp=month)
        for month in months
        for n in range(30)
    ]
    fill(servers, raw, [*flights, Message(None, b'{"dep_delay": 1}', timestamp=months[0])])
    monkeypatch.setattr(sys, "argv", ["backfill.py", servers, raw, str(tmp_path / "january")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "30 flights in" in capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "january")).collect()
    assert sum(row.is_late for row in rows) == 14
