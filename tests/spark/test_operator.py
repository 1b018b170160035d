"""The operator, the column and the sink in Spark itself."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it
from pyspark.sql.types import StructType

import aioparallel
from aioparallel import Batch, RetryPolicy, batches
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import async_udf, parallel_map, register_sink, repartition_by_key, split
from aioparallel.spark.schemas import columns_of

pytestmark = pytest.mark.spark
DEADLINE = 60.0


def rows(spark: SparkSession, count: int, keys: int = 100) -> DataFrame:
    """``seq`` and ``k``, those of a key in one of two partitions, in order of ``seq``."""
    number = F.pmod(F.hash("id"), F.lit(keys)).cast("string")
    df = spark.range(count).select(F.col("id").alias("seq"), F.concat(F.lit("k"), number).alias("k"))
    return df.transform(repartition_by_key("k", order_by="seq", partitions=2))


def test_order_of_keys(spark: SparkSession) -> None:
    """Rows of a key run one after the other, in their order, and come once; the others run beside them."""

    async def jittery(row: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        await asyncio.sleep((row["seq"] * 7919 % 9 + 1) / 1000)
        return {**row, "began": began, "ended": time.perf_counter()}

    schema = "seq bigint, k string, began double, ended double"
    table: Any = rows(spark, 4_000).transform(parallel_map(jittery, schema=schema, key="k")).toPandas()
    assert sorted(table["seq"]) == list(range(4_000))
    table = table.sort_values(["k", "seq"])
    before = table.groupby("k")["ended"].shift()
    assert int((table["began"] < before).sum()) == 0
    moments = sorted([(began, 1) for began in table["began"]] + [(ended, -1) for ended in table["ended"]])
    assert max(itertools.accumulate(step for _, step in moments)) > 20  # of 100 that may run at once in each task


def test_failures_are_rows(spark: SparkSession) -> None:
    """And can be split off, and run again."""

    async def some(row: dict[str, Any]) -> dict[str, Any]:
        if row["seq"] % 100 == 3:
            raise ValueError("three")
        return {"seq": row["seq"]}

    operator = parallel_map(some, schema="seq bigint", key="k", on_error="emit", retry=None)
    ok, failed = split(rows(spark, 1_000).transform(operator).persist())
    assert (ok.count(), failed.count()) == (990, 10)
    assert ok.columns == ["seq"]
    assert {row.error for row in failed.collect()} == {"ValueError: three"}

    async def mend(row: dict[str, Any]) -> dict[str, Any]:
        return {"seq": row["seq"]}

    again = failed.select("row.*").transform(parallel_map(mend, schema="seq bigint", key="k"))
    assert sorted(row.seq for row in again.collect()) == list(range(3, 1_000, 100))


def test_a_failure_names_its_row(spark: SparkSession) -> None:
    """The task fails, and so does the job."""

    async def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["seq"] == 17:
            raise ValueError("seventeen")
        return {"seq": row["seq"]}

    with pytest.raises(PySparkException) as caught:
        rows(spark, 100).transform(parallel_map(fail, schema="seq bigint", key="k", retry=None)).collect()
    assert "ValueError: seventeen" in str(caught.value)
    assert "(k='k" in str(caught.value)
    assert "failed for good after 1 attempt" in str(caught.value)


def test_what_does_not_fit_is_named(spark: SparkSession) -> None:
    """Row and column, where Spark alone says neither."""

    async def text(row: dict[str, Any]) -> dict[str, Any]:
        return {"seq": str(row["seq"]), "k": row["k"]}

    with pytest.raises(PySparkException, match=r"seq is '\d+' \(str\); int wants a whole number") as caught:
        rows(spark, 100).transform(parallel_map(text, schema="seq int, k string", key="k")).collect()
    assert "row 0 of partition" in str(caught.value)


def test_the_same_batch_handler_as_without_spark(spark: SparkSession) -> None:
    """Batches of twenty rows, one of which fails once: the rows and their order are those of parallel_map."""
    failed: set[int] = set()
    last: dict[str, int] = {}

    async def handle(batch: Batch[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in batch:
            if row["seq"] % 97 == 5 and row["seq"] not in failed:
                failed.add(row["seq"])
                batch.fail(row, ConnectionError("once"))
                break
            assert last.get(row["k"], -1) < row["seq"]
            last[row["k"]] = row["seq"]
        await asyncio.sleep(0.001)
        return [{"seq": row["seq"], "size": len(batch), "k": row["k"]} for row in batch]

    handler, retry = batches(handle, size=20), RetryPolicy(first_delay=0.001, max_attempts=5)

    async def without() -> list[dict[str, Any]]:
        items = [row.asDict() for row in rows(spark, 1_000).collect()]
        outcomes = aioparallel.parallel_map(handler, items, key=lambda row: row["k"], retry=retry)
        return [outcome.result() async for outcome in outcomes]

    operator = parallel_map(handler, schema="seq bigint, size int, k string", key="k", retry=retry)
    found = [row.asDict() for row in rows(spark, 1_000).transform(operator).collect()]
    expected = asyncio.run(without())
    assert [sorted((row["seq"], row["k"]) for row in one) for one in (found, expected)] == [
        sorted((row["seq"], row["k"]) for row in expected)
    ] * 2
    assert max(row["size"] for row in found) == max(row["size"] for row in expected) == 20


def test_another_number_of_values_is_told(spark: SparkSession) -> None:
    """Both numbers are in what Spark raises."""

    async def handle(batch: Batch[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"seq": 1}]

    operator = parallel_map(batches(handle, size=20), schema="seq bigint", retry=None)
    with pytest.raises(PySparkException, match=r"must return one value for each, a list of \d+; it returned 1"):
        rows(spark, 100).transform(operator).collect()


def test_columns_are_looked_at_first(spark: SparkSession) -> None:
    """A key that is no column, columns with one name, and an order that a stream cannot have."""

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        return row

    with pytest.raises(ConfigurationError, match="is no column; there are seq, k"):
        rows(spark, 1).transform(parallel_map(same, schema="seq int", key="tail"))
    with pytest.raises(ConfigurationError, match="is the name of two columns"):
        spark.range(1).select("id", "id").transform(parallel_map(same, schema="id int"))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="is not possible on a stream"):
        stream.transform(repartition_by_key("value", order_by="timestamp"))


def test_a_limit_ends_it(spark: SparkSession) -> None:
    """A job that wants five rows does not wait for the others. (They are large: output is buffered.)"""

    async def slowly(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.001 if row["seq"] < 200 else 600)
        return {"seq": row["seq"], "page": "x" * 10_000}

    df = spark.range(1_000, numPartitions=1).select(F.col("id").alias("seq"))
    limited = df.transform(parallel_map(slowly, schema="seq bigint, page string", max_concurrency=10)).limit(5)
    assert len(limited.collect()) == 5


def test_clients_stay_open_from_task_to_task(spark: SparkSession) -> None:
    """One for each Python worker, whatever the number of jobs."""
    from tests.support.spark import handlers  # noqa: PLC0415 - found by name in the workers

    async def where(row: dict[str, Any]) -> dict[str, Any]:
        from aioparallel.handlers.resources import resource  # noqa: PLC0415

        return {"client": resource("counted", str)}

    import contextlib  # noqa: PLC0415

    @contextlib.asynccontextmanager
    async def counted() -> Any:
        import uuid  # noqa: PLC0415

        yield uuid.uuid4().hex

    operator = parallel_map(where, schema="client string", resources={"counted": counted})
    clients = {row.client for _ in range(3) for row in rows(spark, 50).transform(operator).collect()}
    assert 1 <= len(clients) <= 2
    assert handlers.RESOURCES


def test_the_process_of_a_task_is_left_as_it_was(spark: SparkSession) -> None:
    """Other functions of Python run in it before and after: how often it looks for garbage is theirs to say."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import gc  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            pass
        found = f"{gc.get_threshold()} {gc.get_freeze_count()} {len(gc.callbacks)}"
        yield pa.RecordBatch.from_pylist([{"found": found}])

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        import gc  # noqa: PLC0415

        return {"seq": gc.get_threshold()[0]}

    df = spark.range(10, numPartitions=2).select(F.col("id").alias("seq"))
    before = {row.found for row in df.mapInArrow(look, "found string").collect()}
    operator = parallel_map(same, schema="seq bigint")
    assert {row.seq for row in df.transform(operator).transform(operator).collect()} == {20_000}
    assert {row.found for row in df.mapInArrow(look, "found string").collect()} == before


def test_times_in_zones_that_python_does_not_know(spark: SparkSession) -> None:
    """Handlers get UTC, in rows and in columns, and nothing is shifted."""

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        return row

    @async_udf(returns="array<timestamp>")
    async def listed(t: Any) -> Any:
        return [t]

    schema = "t timestamp, list array<timestamp>, s struct<t: timestamp>, m map<string, timestamp>"
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "GMT+8")
    try:
        df = spark.sql(
            "select t, array(t) as list, named_struct('t', t) as s, map('k', t) as m "
            "from values (timestamp'2026-03-01 12:00:00'), (timestamp'9999-12-31 23:59:59') as rows(t)"
        )
        out = df.transform(parallel_map(same, schema=schema)).withColumn("column", listed("t"))
        texts = out.selectExpr("cast(struct(t, list, s, m, column) as string) as text").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert sorted(row.text for row in texts) == [
        f"{{{t}, [{t}], {{{t}}}, {{k -> {t}}}, [{t}]}}" for t in ("2026-03-01 12:00:00", "9999-12-31 23:59:59")
    ]


def test_keys_of_other_kinds(spark: SparkSession) -> None:
    """A name with a dot in it is a name; what cannot be a key is refused, and so is a frame without columns."""

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        return row

    df = spark.range(10).select(F.col("id").alias("a.b"))
    assert df.transform(repartition_by_key("a.b", order_by="a.b", partitions=3)).count() == 10
    with pytest.raises(ConfigurationError, match="name a column of it"):
        spark.range(1).selectExpr("array(id) as k").transform(parallel_map(same, schema="n int", key="k"))
    with pytest.raises(ConfigurationError, match="must have a column"):
        spark.range(1).select().transform(parallel_map(same, schema="n int"))


def test_partitions_under_persist_are_few(spark: SparkSession) -> None:
    """Nothing joins the 200 of a shuffle there, and each would be a task of Python's."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    df = spark.range(100)
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "200")
        persisted = df.transform(repartition_by_key("id", order_by="id")).persist()
        numbers = persisted.select(F.spark_partition_id()).distinct().count(), persisted.rdd.getNumPartitions()
        spark.conf.set("spark.sql.shuffle.partitions", "5")
        assert df.transform(repartition_by_key("id")).rdd.getNumPartitions() <= 5
        assert df.transform(repartition_by_key("id", partitions=3)).rdd.getNumPartitions() == 3
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    persisted.unpersist()
    assert numbers == (16, 16)


def test_a_column(spark: SparkSession) -> None:
    """In select and withColumn, beside others, in the order of its rows; filtered after, called once for each row."""

    @async_udf(returns="struct<twice bigint, name string>", key="k", retry=None)
    async def double(seq: int, k: str) -> dict[str, object]:
        await asyncio.sleep((seq % 5) / 1000)
        return {"twice": 2 * seq, "name": f"{k}!"}

    @async_udf(returns="bigint")
    async def next_one(seq: int) -> int:
        return seq + 1

    df = rows(spark, 2_000).withColumn("o", double("seq", F.col("k"))).withColumn("next", next_one("seq"))
    found = df.where("o.twice >= 0").collect()
    assert len(found) == 2_000
    assert all(row.o.twice == 2 * row.seq and row.o.name == f"{row.k}!" and row.next == row.seq + 1 for row in found)


def test_any_name_of_a_column_is_one(spark: SparkSession) -> None:
    """With dots, with backticks, where two differ in their case, and where one would mean all of them."""
    df = spark.sql(
        "select id as `a.b`, -id as a, 2 * id as A, 3 * id as `c``d`, named_struct('b', 0) as `a.b.c` from range(20)"
    )

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        if row["a.b"] == 7:
            raise ValueError("seven")
        return row

    made = df.transform(parallel_map(same, schema=df.schema, key=["a.b", "c`d"], retry=None, on_error="emit"))
    found = sorted(tuple(row.value or row.row) for row in made.collect())
    assert found == [(n, -n, 2 * n, 3 * n, (0,)) for n in range(20)]

    async def unchanged(row: dict[str, Any]) -> dict[str, Any]:
        return row

    star = spark.sql("select id as `*`, -id as a from range(3)")
    assert sorted(star.transform(parallel_map(unchanged, schema=star.schema)).collect()) == [(0, 0), (1, -1), (2, -2)]


def test_names_of_columns(spark: SparkSession) -> None:
    """As Spark names them, with a key or without; nothing in them differs from run to run."""

    @async_udf(returns="bigint")
    async def plain(seq: int) -> int:
        return seq

    @async_udf(returns="bigint", key="seq")
    async def keyed(seq: int, k: object) -> int:
        return seq

    inner, seq = plain("seq"), F.col("seq")
    found = rows(spark, 1).select(plain("seq"), plain(seq + 1), plain(inner), keyed("seq", seq), keyed(inner, "k"))
    assert found.columns == ["plain(seq)", "plain((seq + 1))", "plain(plain(seq))", "keyed(seq, seq)", "keyed(seq, k)"]


def sink_of(spark: SparkSession, file: Path, handler: str) -> tuple[DataFrame, dict[str, str]]:
    """500 rows that name the file, and the options of a sink whose handler writes to it."""
    register_sink(spark)
    options = {
        "handler": f"tests.support.spark.handlers:{handler}",
        "resources": "tests.support.spark.handlers:RESOURCES",
        "key": "k",
        "id": "k,seq",
    }
    return rows(spark, 500).withColumn("file", F.lit(str(file))), options


def test_a_sink_of_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Its handler returns nothing; what fails in it comes again, in order of its key."""
    file = tmp_path / "written"
    df, options = sink_of(spark, file, "note_all")
    df.write.format("aioparallel").options(**options).mode("append").save()
    by_key: dict[str, list[int]] = {}
    for line in file.read_text().splitlines():
        seq, key, *_ = line.split("|")
        by_key.setdefault(key, []).append(int(seq))
    assert sorted(itertools.chain(*by_key.values())) == list(range(500))
    assert all(found == sorted(found) for found in by_key.values())


def test_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Each row once, with a key of its own, and clients that are shared."""
    file = tmp_path / "written"
    df, options = sink_of(spark, file, "note")
    df.write.format("aioparallel").options(**options).mode("append").save()
    lines = [line.split("|") for line in file.read_text().splitlines()]
    assert sorted(int(line[0]) for line in lines) == list(range(500))
    assert len({line[2] for line in lines}) == 500
    assert {line[3].rsplit(" ", 1)[0] for line in lines} == {"client of"}
    by_key: dict[str, list[int]] = {}
    for seq, key, *_ in lines:
        by_key.setdefault(key, []).append(int(seq))
    assert all(found == sorted(found) for found in by_key.values())
    assert all(json.loads(name) == [key, int(seq)] for seq, key, name, *_ in lines)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, "handler=None: is needed"),
        ({"handler": "tests.support.spark.handlers:nothing"}, "has no attribute 'nothing'"),
        ({"handler": "tests.support.spark.handlers"}, 'must be "module:name"'),
        ({"handler": ":note"}, 'must be "module:name"'),
        ({"handler": "tests.support.spark.handlers:note", "keys": "k"}, "keys='k': is no option of this sink"),
        ({"handler": "tests.support.spark.handlers:note", "key": "l"}, "key='l': is no column; there are seq, k"),
        ({"handler": "tests.support.spark.handlers:note", "timeout": "soon"}, "timeout='soon': must be seconds"),
        ({"handler": "tests.support.spark.handlers:note", "on_error": "emit"}, "on_error='emit'"),
        ({"handler": "tests.support.spark.handlers:note"}, "id=None: is needed"),
        (
            {"handler": "tests.support.spark.handlers:fail_at_seven", "attempts": "1", "key": "k", "id": "none"},
            "ValueError: seven",
        ),
    ],
)
def test_mistakes_of_a_sink(spark: SparkSession, options: dict[str, str], wrong: str) -> None:
    """Wrong options are refused on the driver; a row that fails fails the write."""
    register_sink(spark)
    with pytest.raises(PySparkException) as caught:
        rows(spark, 10).write.format("aioparallel").options(**options).mode("append").save()
    assert wrong in str(caught.value)


def test_a_stream_through_operator_and_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Micro-batch after micro-batch, each row with its key; a query that is stopped leaves nothing."""

    async def tenfold(row: dict[str, Any]) -> dict[str, Any]:
        return {"seq": row["value"], "k": f"k{row['value'] % 10}", "file": file}

    register_sink(spark)
    file = str(tmp_path / "written")
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 2).load()
    nameless = stream.writeStream.format("aioparallel").option("handler", "tests.support.spark.handlers:note")
    with pytest.raises(PySparkException, match="id=None: is needed"):
        nameless.option("checkpointLocation", str(tmp_path / "nameless")).start().awaitTermination(60)
    query = (
        stream.transform(parallel_map(tenfold, schema="seq bigint, k string, file string"))
        .writeStream.format("aioparallel")
        .options(
            handler="tests.support.spark.handlers:note", resources="tests.support.spark.handlers:RESOURCES", id="seq"
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_for(lambda: (query.lastProgress or {"batchId": -1})["batchId"] >= 2 or query.exception() is not None)
        assert query.exception() is None
    finally:
        query.stop()
    lines = [line.split("|") for line in Path(file).read_text().splitlines()]
    assert len({line[2] for line in lines}) == len(lines) >= 300
    assert sorted({int(line[0]) for line in lines})[:300] == list(range(300))


def test_a_query_stopped_in_mid_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Leaves no process that goes on: Spark ends the worker, and its threads with it."""

    async def hang(row: dict[str, Any]) -> dict[str, Any]:
        (Path(directory) / str(os.getpid())).touch()
        await asyncio.sleep(600)
        return row

    directory = str(tmp_path / "workers")
    Path(directory).mkdir()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).option("numPartitions", 2).load()
    query = stream.transform(parallel_map(hang, schema="value bigint")).writeStream.format("noop").start()
    wait_for(lambda: len(list(Path(directory).iterdir())) == 2)
    query.stop()
    workers = [int(path.name) for path in Path(directory).iterdir()]
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in workers))


def wait_for(condition: Callable[[], bool]) -> None:
    """Raises AssertionError if it does not come true in time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_schemas_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    """Without asking it."""
    for text in (
        "a int, b bigint, c smallint, d tinyint, e float, f double, g boolean, h string, i binary, j date",
        "a timestamp, b timestamp_ntz, c timestamp_ltz, d decimal, e decimal(10), f decimal(10, 2), g void",
        "`a b` array<int> NOT NULL, b: map<string, array<struct<x: int, y string not null>>> COMMENT 'what''s \\'it'",
        "a INTEGER, b Long, c dec(3,1), d numeric(4)",
    ):
        assert columns_of("schema", text) == StructType.fromDDL(text), text
