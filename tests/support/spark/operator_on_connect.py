"""All three forms over Spark Connect, in a process of its own: a classic session cannot be beside it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_TESTING"] = "1"  # a free port for its server, not always the same
os.environ["PYTHONPATH"] = str(REPOSITORY)
sys.path.insert(0, str(REPOSITORY))


def main(remote: str, reuse: str, file: str) -> None:
    """Prints how many rows each form has seen, and what the workers were. ``remote``: a server's address, or
    ``local[2]``."""
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from aioparallel.records.errors import CheckFailed  # noqa: PLC0415
    from aioparallel.spark import async_udf, parallel_map, read_topic, register_sink, write_topic  # noqa: PLC0415
    from tests.support.spark.settings import ALONE  # noqa: PLC0415

    builder: Any = SparkSession.builder
    builder = builder.remote(remote)
    if remote.startswith("local"):
        builder = builder.config("spark.python.worker.reuse", reuse).config(map=ALONE)
    spark: SparkSession = builder.getOrCreate()
    df = spark.range(1_000, numPartitions=2).select(
        F.col("id").alias("seq"), F.concat(F.lit("k"), (F.col("id") % 10).cast("string")).alias("k")
    )

    def mark(path: Path) -> None:
        path.touch()

    @contextlib.asynccontextmanager
    async def counted() -> Any:
        import uuid  # noqa: PLC0415

        opened = Path(directory, f"{uuid.uuid4().hex}.opened")
        mark(opened)
        yield
        mark(opened.with_suffix(".closed"))

    directory = str(Path(file).parent)

    async def look(row: dict[str, Any]) -> dict[str, Any]:
        import os  # noqa: PLC0415
        import sys  # noqa: PLC0415

        clients = sorted({name.split(".")[0] for name in sys.modules} & {"aiokafka", "confluent_kafka"})
        return {"seq": row["seq"], "worker": os.getpid(), "loaded": clients}

    schema = "seq bigint, worker bigint, loaded array<string>"
    looked = df.transform(parallel_map(look, schema=schema, key="k", resources={"c": counted}))
    found = looked.collect() + looked.collect()

    @async_udf(returns="bigint", key="k")
    async def twice(seq: int, k: str) -> int:
        return 2 * seq

    column = df.select(twice("seq", "k").alias("twice")).collect()
    register_sink(spark)
    options = {
        "handler": "tests.support.spark.handlers:note",
        "resources": "tests.support.spark.handlers:RESOURCES",
        "key": "k",
        "id": "seq",
    }
    df.withColumn("file", F.lit(file)).write.format("aioparallel").options(**options).mode("append").save()
    no_jars = []
    asks: tuple[Callable[[], object], ...] = (
        lambda: read_topic(spark, "raw", bootstrap_servers="127.0.0.1:9", streaming=False),
        lambda: read_topic(spark, "raw", bootstrap_servers="127.0.0.1:9"),
        lambda: write_topic(df.select(F.col("k").alias("value")), "work", bootstrap_servers="127.0.0.1:9"),
    )
    for ask in asks if remote.startswith("local") else ():  # another server has the connector
        try:
            ask()
        except CheckFailed as error:
            no_jars.append("kafka_jars()" in str(error))

    async def same(row: dict[str, Any]) -> dict[str, Any]:
        return {"seq": row["seq"]}

    async def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise OSError("no such file: \udcff")

    def error_of(action: Callable[[], object]) -> str:
        try:
            action()
        except Exception as error:
            return str(error)
        return "none"

    text = F.when(F.col("seq") == 7, F.unhex(F.lit("FF")).cast("string")).otherwise("text")
    odd = df.select("seq", text.alias("text"), F.collate("k", "UTF8_LCASE").alias("folded"))
    kept = odd.transform(parallel_map(same, schema="seq bigint", on_error="emit")).where("error is not null")
    said = {
        "no_jars": no_jars,
        "unreadable": [list(row) for row in kept.selectExpr("row.seq", "hex(row.text)").collect()],
        "refused": error_of(lambda: odd.transform(parallel_map(same, schema="seq bigint", key="folded"))),
        "failed": error_of(df.transform(parallel_map(fail, schema="seq bigint", retry=None)).collect),
        "column name": df.select(twice("seq", F.col("k"))).columns,
        "operator": len({row.seq for row in found}),
        "workers": len({row.worker for row in found}),
        "loaded": sorted({name for row in found for name in row.loaded}),
        "opened": len(list(Path(directory).glob("*.opened"))),
        "closed": len(list(Path(directory).glob("*.closed"))),
        "column": len({row.twice for row in column}),
        "sink": len({line.split("|")[0] for line in Path(file).read_text().splitlines()}),
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
