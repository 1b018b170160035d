"""What Spark's Python workers need: aioparallel and pyarrow, in the Python that Spark starts them with.

Functions that must run without aioparallel are nested ones: cloudpickle sends those by value, with no module to import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StringType

from aioparallel.spark.spark_session import summary_of

__all__ = ["WorkerNeeds", "worker_trouble"]

_NEEDED = ("aioparallel", "pyarrow")


class WorkerNeeds:
    """Unpickles to None in a worker that has what it needs; in others the error says which Python the worker runs.

    As an attribute of a function it is unpickled before all that the function refers to: cloudpickle writes a
    function's attributes before its globals and its closure.
    """

    def __reduce__(self) -> Any:
        return _requiring(), _NEEDED


def _requiring() -> Callable[..., None]:
    def require(*names: str) -> None:
        import importlib.util  # noqa: PLC0415 - sent by value
        import sys  # noqa: PLC0415

        for name in names:
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(
                    f"No module named {name!r}: this worker of Spark runs {sys.executable}. Let the environment "
                    f"variable PYSPARK_PYTHON name a Python that has {' and '.join(names)}, before the session starts",
                    name=name,
                )

    return require


def worker_trouble(spark: SparkSession) -> str | None:
    """Why Python workers cannot run handlers, and what to do; None if they can. Runs a job of one row."""
    ask: Any = F.udf(_asking(_NEEDED), StringType(), useArrow=False)  # works without pyarrow
    try:
        [[answer]] = spark.range(1).select(ask("id")).collect()
    except Exception as error:  # Spark's errors, and Java's through the gateway
        version = ".".join(map(str, sys.version_info[:2]))
        return f"Spark cannot run Python workers: {summary_of(error)}; {_remedy(f'a Python {version}')}"
    executable, *missing = answer.split("\n")
    if not missing:
        return None
    return f"Spark's Python workers run {executable}, without {' and '.join(missing)}: {_remedy('a Python')}"


def _asking(names: tuple[str, ...]) -> Callable[[object], str]:
    def ask(_: object) -> str:
        import importlib.util  # noqa: PLC0415 - sent by value
        import sys  # noqa: PLC0415

        return "\n".join([sys.executable, *(name for name in names if importlib.util.find_spec(name) is None)])

    return ask


def _remedy(python: str) -> str:
    return (
        f"let the environment variable PYSPARK_PYTHON name {python} that has {' and '.join(_NEEDED)}, before the "
        f"session starts; this program runs {sys.executable}"
    )
