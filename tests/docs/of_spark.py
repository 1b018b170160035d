"""What a reader of the blocks about Spark has around them, in a session that is there. A block that is not here needs
nothing."""

from __future__ import annotations

from collections.abc import Mapping

from aioparallel import Outgoing

from .given import Given

__all__ = ["GIVEN"]

_RAW = [Outgoing("docs-raw", b"value %d" % n, b"k%d" % (n % 5), [("trace", b"t")]) for n in range(200)]
_STREAM = 'frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()\n'
_UNTIL_ROWS = """
import time
def until_rows(progress):
    for _ in range(600):
        if any(figures.rows for figures in progress.snapshot()):
            return
        time.sleep(0.1)
    raise TimeoutError("no batch within a minute")
"""
_FLIGHTS = """
from aioparallel.spark import async_udf, kafka_jars, parallel_map, run_locally

async def enrich(row):
    return {"tailnum": row["tailnum"], "weather": "fair"}

columns = ("concat('N', id % 10) as tailnum", "id as time_hour", "concat('/', id) as url")
flights = df = spark.range(100).selectExpr(*columns)
"""
_SERVICE = """
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Weather(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"fair")

service = ThreadingHTTPServer(("127.0.0.1", 0), Weather)
threading.Thread(target=service.serve_forever, daemon=True).start()
PORT = service.server_port
"""
_CALL = """
from aioparallel.spark import run_locally
print(run_locally(operator, [{"origin": "JFK"}]))
service.shutdown()
service.server_close()
"""
_IN_2013 = 1_357_000_000_000  # 1 January, in milliseconds

GIVEN: Mapping[str, Given] = {
    "README.md: In Spark": Given(
        before=_FLIGHTS, after="print(enriched.where('value.weather = \"fair\"').count())", says="100\n"
    ),
    "docs/spark.md: The operator: `parallel_map`": Given(says="2000 flights\n"),
    "docs/spark.md: Rows that fail": Given(
        says="90 fine, 10 failed:\n3 ValueError: no such thing: 3\n13 ValueError: no such thing: 13\n"
    ),
    "docs/spark.md: Clients": Given(
        before=_SERVICE,
        instead={'f"http://127.0.0.1:8000/': 'f"http://127.0.0.1:{PORT}/'},
        after=_CALL,
        says=r"\[\{'origin': 'JFK', 'weather': 'fair'\}\]\n",
    ),
    "docs/spark.md: A column: `async_udf`": Given(says="1000 pages\n"),
    "docs/spark.md: Topics: `read_topic` and `write_topic`": Given(
        instead={'"raw"': '"docs-raw"', '"work"': '"docs-work"', '"checkpoints/': '"{folder}/checkpoints/'},
        after="""
written = read_topic(spark, "docs-work", bootstrap_servers=SERVERS, streaming=False).collect()
assert sorted(bytes(row.value) for row in written) == sorted(b"VALUE %d" % n for n in range(200))
named = {"trace", "src-topic", "src-partition", "src-offset"}
assert all(named <= {header.key for header in row.headers} for row in written)
""",
        topics={"docs-raw": _RAW, "docs-work": []},
    ),
    "docs/spark.md: Watching a stream": Given(
        before=_UNTIL_ROWS,
        instead={
            '"raw"': '"docs-watched"',
            '"checkpoints/': '"{folder}/checkpoints/',
            "query.awaitTermination(5)": "until_rows(progress)",
        },
        after="assert progress.snapshot()[0].rows > 0\n",
        topics={"docs-watched": [Outgoing("docs-watched", b"value %d" % n) for n in range(20)]},
    ),
    "docs/spark.md: Backfill": Given(
        instead={'("flights")': '("{folder}/flights")', '("late"': '("{folder}/late"'}, says="84 late flights\n"
    ),
    "aioparallel.spark": Given(before=_FLIGHTS, after="print(enriched.count())", says="100\n"),
    "aioparallel.spark.backfill": Given(
        before=_FLIGHTS
        + """
from datetime import UTC, datetime
from pyspark.sql.functions import col
from aioparallel.spark.backfill import FromTopic, ToParquet, backfill

def clean(records):
    return records.select(col("key").cast("string").alias("tailnum"))

""",
        instead={'"raw"': '"docs-2013"', '"january"': '"{folder}/january"'},
        after='print(spark.read.parquet("{folder}/january").count())',
        topics={"docs-2013": [Outgoing("docs-2013", b"", b"N%d" % n, timestamp=_IN_2013 + n) for n in range(20)]},
        says="20\n",
    ),
    "aioparallel.spark.column.async_udf": Given(before=_FLIGHTS, after="print(pages.collect()[0].page)", says="None\n"),
    "aioparallel.spark.connector_jars.kafka_jars": Given(before="from pyspark.sql import SparkSession\n" + _FLIGHTS),
    "aioparallel.spark.local.run_locally": Given(before=_FLIGHTS),
    "aioparallel.spark.operator.parallel_map": Given(before=_FLIGHTS, after="print(enriched.count())", says="100\n"),
    "aioparallel.spark.progress": Given(
        before="from aioparallel.spark import ProgressListener\n" + _STREAM + "df = frame\n" + _UNTIL_ROWS,
        instead={"query.awaitTermination()": "until_rows(progress)", '"checkpoint"': '"{folder}/checkpoint"'},
        after="assert progress.snapshot()[0].rows > 0\n",
    ),
}
