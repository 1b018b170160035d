"""Values of Spark's that Python does not have, and texts of Python's that the JVM does not have."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import async_udf, parallel_map, register_sink, split

pytestmark = pytest.mark.spark
DEADLINE = 60.0

HARD = """
select id as seq, string(id) as k,
  case when id = 1 then cast(x'ff61' as string) else 'text' end as text,
  case when id = 2 then timestamp'9999-12-31 23:59:59' else timestamp'2026-01-01 00:00:00' end as moment,
  case when id = 3 then date'0000-01-01' else date'2026-01-01' end as day,
  named_struct('texts', array(case when id = 4 then cast(x'fe' as string) else 'text' end)) as nested,
  from_json(case when id = 5 then '{"a": 1, "a": 2}' else '{"a": 1}' end, 'map<string, int>') as counts
from range(100)
"""
AS_TEXT = "hex(text), string(moment), string(day), hex(nested.texts[0]), string(map_entries(counts))"


@pytest.fixture
def hard(spark: SparkSession) -> Iterator[DataFrame]:
    """A hundred rows, of which Python cannot hold five."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        yield spark.sql(HARD)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_rows_that_python_cannot_hold_fail_by_themselves(hard: DataFrame) -> None:
    """In the operator: the others come out, and these as they went in, to be run again."""

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        return {"seq": row["seq"]}

    made = hard.transform(parallel_map(same, schema="seq bigint", key=["text", "moment"], on_error="emit")).persist()
    ok, failed = split(made)
    assert sorted(row.seq for row in ok.collect()) == [0, *range(6, 100)]
    errors = {row.seq: (row.error, row.attempts) for row in failed.select("row.seq", "error", "attempts").collect()}
    said = {1: "text", 2: "moment", 3: "day", 4: "nested", 5: "counts"}
    assert all(f"UnreadableRow: column '{column}' is" in errors[seq][0] for seq, column in said.items())
    assert [errors[seq][1] for seq in sorted(errors)] == [0] * 5
    columns = ["seq", *AS_TEXT.split(", ")]
    before = hard.where("seq between 1 and 5").orderBy("seq").selectExpr(*columns).collect()
    assert failed.select("row.*").orderBy("seq").selectExpr(*columns).collect() == before
    made.unpersist()
    with pytest.raises(PySparkException, match=r"column 'text' is text that is not UTF-8, b'\\xffa'") as caught:
        hard.transform(parallel_map(same, schema="seq bigint", key="seq")).collect()
    assert "for row 1 of partition 0 (seq=1)" in str(caught.value)


def test_the_same_in_a_column_and_in_the_sink(spark: SparkSession, hard: DataFrame, tmp_path: Path) -> None:
    """Null there, and left out here."""

    @async_udf(returns="bigint", key="text", on_error="null")
    async def same(seq: int, text: str, moment: Any, day: Any, nested: Any, counts: Any) -> int:
        return seq

    names = ["seq", "text", "moment", "day", "nested", "counts"]
    found = hard.select("seq", same(*names).alias("same"))
    assert found.columns == ["seq", "same"]
    assert {row.seq for row in found.collect() if row.same != row.seq} == {1, 2, 3, 4, 5}
    assert hard.select(same(*names)).columns == [f"same({', '.join(names)})"]

    register_sink(spark)
    options = {
        "handler": "tests.support.spark.handlers:note",
        "resources": "tests.support.spark.handlers:RESOURCES",
        "id": "seq",
        "on_error": "skip",
    }
    file = tmp_path / "written"
    rows = hard.withColumn("file", F.lit(str(file)))
    rows.write.format("aioparallel").options(**options).mode("append").save()
    assert sorted(int(line.split("|")[0]) for line in file.read_text().splitlines()) == [0, *range(6, 100)]


@pytest.fixture
def deadline(spark: SparkSession) -> Iterator[None]:
    """A worker that cannot write its error leaves the job without an end."""
    timer = threading.Timer(DEADLINE, spark.sparkContext.cancelAllJobs)
    timer.start()
    yield
    timer.cancel()


@pytest.mark.usefixtures("deadline")
def test_an_error_that_is_no_utf8_ends_its_job(spark: SparkSession) -> None:
    """So it does with megabytes of text; in the operator, the column and the sink."""

    async def fail(row: Any) -> Any:
        raise OSError("no such file: \udcff" + "x" * 3_000_000)

    frame = spark.range(10, numPartitions=1)
    column = async_udf(returns="int", retry=None)(fail)
    register_sink(spark)
    options = {"handler": "tests.support.spark.handlers:fail_without_utf8", "id": "none", "attempts": "1"}
    writer = frame.write.format("aioparallel").options(**options).mode("append")
    for action in (
        lambda: frame.transform(parallel_map(fail, schema="id bigint", retry=None)).collect(),
        lambda: frame.select(column("id").alias("c")).collect(),
        writer.save,
    ):
        with pytest.raises(Exception, match=r"OSError: no such file: \\udcff") as caught:
            action()
        assert len(str(caught.value)) < 1_000_000


def test_keys_that_spark_holds_equal(spark: SparkSession) -> None:
    """NaN is one lane, and so is zero; texts with a collation are refused, in the operator, the column and the sink."""

    async def alone(row: dict[str, Any]) -> dict[str, Any]:
        import asyncio  # noqa: PLC0415
        import time  # noqa: PLC0415

        began = time.perf_counter()
        await asyncio.sleep(0.001)
        return {"zero": row["k"] == 0, "began": began, "ended": time.perf_counter()}

    frame = spark.range(60, numPartitions=1).selectExpr(
        "case id % 4 when 0 then double('NaN') when 1 then -double('NaN') when 2 then 0.0d else -0.0d end as k",
        "collate(string(id), 'UTF8_LCASE') as folded",
    )
    operator = parallel_map(alone, schema="zero boolean, began double, ended double", key="k")
    rows = frame.transform(operator).orderBy("began").collect()
    for zero in (True, False):
        lane = [row for row in rows if row.zero == zero]
        assert len(lane) == 30
        assert all(before.ended <= after.began for before, after in itertools.pairwise(lane))

    refused = r"key='folded': is string collate UTF8_LCASE"
    with pytest.raises(ConfigurationError, match=refused):
        frame.transform(parallel_map(alone, schema="k double", key="folded"))
    register_sink(spark)
    options = {"handler": "tests.support.spark.handlers:fail_at_seven", "key": "folded", "id": "none"}
    with pytest.raises(PySparkException, match=refused):
        frame.write.format("aioparallel").options(**options).mode("append").save()

    @async_udf(returns="double", key="folded")
    async def keyed(k: float, folded: str) -> float:
        return k

    assert len(frame.where(keyed("k", F.collate("folded", "UTF8_BINARY")) == 0).collect()) == 30
    with pytest.raises(PySparkException, match=r"key='.*keyed': gets text with a collation"):
        frame.select(keyed("k", "folded")).collect()


def test_intervals_of_months_are_refused_in_words(spark: SparkSession) -> None:
    """In a column, alone and nested: Arrow's Python has no arrays of them."""
    frame = spark.range(3).selectExpr("make_ym_interval(1, int(id)) as age", "array(make_ym_interval(0, 1)) as ages")

    @async_udf(returns="string")
    async def text(age: Any) -> str:
        return str(age)

    for name in ("age", "ages"):
        with pytest.raises(PySparkException, match="a year-month interval, which Python cannot read"):
            frame.select(text(name)).collect()
    assert frame.select(text(F.col("age").cast("string"))).count() == 3


def test_a_column_is_a_condition(spark: SparkSession) -> None:
    """Of a filter, with a key or without."""

    @async_udf(returns="boolean", key="n")
    async def is_even(n: int, unit: str = "") -> bool:
        return n % 2 == 0

    assert spark.range(4).where(is_even("id", F.lit(None))).count() == 2
