"""aioparallel inside Apache Spark (extra ``[spark]``): async handlers on the rows of a DataFrame, in order of key.

::

    from aioparallel.spark import parallel_map, repartition_by_key

    enriched = (
        flights.transform(repartition_by_key("tailnum", order_by="time_hour"))
        .transform(parallel_map(enrich, schema="tailnum string, weather string", key="tailnum", max_concurrency=100))
    )

Three interfaces to one engine::

    operator.py    parallel_map: DataFrame to DataFrame, for df.transform(); split
    column.py      async_udf: a function of columns, for select and withColumn
    sink.py        format("aioparallel"): for side effects, with df.write and df.writeStream; text_options.py: its
                   options; row_names.py: its idempotency keys

What they share::

    task.py        runs the rows of one task on the event loop of its Python worker; task_end.py: notices its end
    rows.py        reads Arrow batches as rows
    builders.py    builds arrays of results, with strict checks of types; leaves.py: of scalar types
    arrow_batches.py  outcomes to Arrow batches
    schemas.py     schemas given as text or as types
    keys.py        keys and names of rows; repartition_by_key
    safe_errors.py errors that the JVM can receive
    limits.py      max_concurrency for a task or for the job
    local.py       run_locally: runs a handler like a task, without Spark

For pipelines, on the driver, imported on first use::

    topics.py      read_topic, write_topic, sink_options; headers.py: outgoing, source_headers
    connector_options.py  checks their options; kafka_properties.py: the properties of Kafka's clients
    backfill.py    a stream's handler over a range or files; parquet_output.py: writes files at once
    connector_jars.py  kafka_jars: Spark's Kafka connector
    checks.py      check: whether a pipeline has what it needs, before it starts
    checkpoints.py checkpoint_status; ``python -m aioparallel.spark.status``
    progress.py    ProgressListener: progress of streaming queries on the terminal, as values, and as a group's lag

Executors import no Kafka client, and nothing uses the JVM, so all of this works over Spark Connect.
"""

import importlib
from typing import TYPE_CHECKING

import aioparallel.spark.versions  # noqa: F401 - first: older PySpark lacks what the others import
from aioparallel.spark.column import AsyncColumn, async_udf
from aioparallel.spark.keys import Key, repartition_by_key
from aioparallel.spark.local import run_locally
from aioparallel.spark.operator import DEFAULT_RETRY, Operator, parallel_map, split
from aioparallel.spark.sink import SinkRow, Written, register_sink
from aioparallel.spark.values import Row

if TYPE_CHECKING:
    from aioparallel.spark.checkpoints import CheckpointStatus, checkpoint_status
    from aioparallel.spark.checks import Checked, check
    from aioparallel.spark.connector_jars import kafka_jars
    from aioparallel.spark.headers import outgoing, source_headers
    from aioparallel.spark.progress import ProgressListener, QueryProgress
    from aioparallel.spark.topics import read_topic, sink_options, write_topic

__all__ = [
    "DEFAULT_RETRY",
    "AsyncColumn",
    "Checked",
    "CheckpointStatus",
    "Key",
    "Operator",
    "ProgressListener",
    "QueryProgress",
    "Row",
    "SinkRow",
    "Written",
    "async_udf",
    "check",
    "checkpoint_status",
    "kafka_jars",
    "outgoing",
    "parallel_map",
    "read_topic",
    "register_sink",
    "repartition_by_key",
    "run_locally",
    "sink_options",
    "source_headers",
    "split",
    "write_topic",
]

# Each new Python worker imports this package: modules for drivers are imported on first use.
_ON_DRIVERS = {
    "CheckpointStatus": "checkpoints",
    "Checked": "checks",
    "ProgressListener": "progress",
    "QueryProgress": "progress",
    "check": "checks",
    "checkpoint_status": "checkpoints",
    "kafka_jars": "connector_jars",
    "outgoing": "headers",
    "read_topic": "topics",
    "sink_options": "topics",
    "source_headers": "headers",
    "write_topic": "topics",
}


def __getattr__(name: str) -> object:
    if name in _ON_DRIVERS:
        found: object = getattr(importlib.import_module(f"{__name__}.{_ON_DRIVERS[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
