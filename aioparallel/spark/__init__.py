"""aioparallel inside Apache Spark (extra ``[spark]``): async handlers on the rows of a DataFrame, in order of key.

::

    from aioparallel.spark import parallel_map, repartition_by_key

    enriched = (
        flights.transform(repartition_by_key("tailnum", order_by="time_hour"))
        .transform(parallel_map(enrich, schema="tailnum string, weather string", key="tailnum", max_concurrency=100))
    )

Three forms over one engine::

    operator.py   parallel_map: DataFrame to DataFrame, for df.transform(); split
    column.py     async_udf: a function of columns, for select and withColumn
    sink.py       format("aioparallel"): for side effects, with df.write and df.writeStream

and what they share::

    task.py       one task's rows through the event loop of its Python worker
    results.py    outcomes to Arrow batches
    rows.py       rows, Arrow and the declared schema; ddl.py reads it
    keys.py       keys and names of rows; repartition_by_key
    limits.py     whose limit max_concurrency is
    local.py      run_locally: a handler through all of that without Spark

Nothing here loads a Kafka client in an executor, and nothing touches the JVM, so all of it works over Spark Connect.
"""

from aioparallel.spark.column import AsyncColumn, async_udf
from aioparallel.spark.keys import Key, repartition_by_key
from aioparallel.spark.local import run_locally
from aioparallel.spark.operator import DEFAULT_RETRY, Operator, parallel_map, split
from aioparallel.spark.rows import Row
from aioparallel.spark.sink import SinkRow, Written, register_sink

__all__ = [
    "DEFAULT_RETRY",
    "AsyncColumn",
    "Key",
    "Operator",
    "Row",
    "SinkRow",
    "Written",
    "async_udf",
    "parallel_map",
    "register_sink",
    "repartition_by_key",
    "run_locally",
    "split",
]
