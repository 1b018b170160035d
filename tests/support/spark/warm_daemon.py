"""Spark's daemon of Python workers, with what every worker of ours imports: workers are forked from it, and each would
import that again, in 0.6 s of CPU time. Handlers that fail end their worker, so tests have dozens of them. And a worker
collects garbage after each task: what is frozen here is not searched.

Spark runs it as ``python -m tests.support.spark.warm_daemon pyspark.worker`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401 - for the workers
import pyarrow  # noqa: F401 - for the workers
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers, types  # noqa: F401 - for the workers

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
