"""Checks the version of PySpark at import, before anything is used that older versions lack."""

from __future__ import annotations

import re
from typing import Final

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.missing_extra import missing_extra

try:
    import pyarrow  # noqa: F401
    import pyspark
except ModuleNotFoundError as missing:
    raise missing_extra(missing, "aioparallel.spark needs", "spark") from None

__all__ = ["OLDEST", "check_pyspark", "series_of"]

OLDEST: Final = (4, 2)


def series_of(version: str) -> tuple[int, int]:
    """(4, 2) for "4.2.1", also with suffixes of vendors."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_pyspark(version: str) -> None:
    """Raises ConfigurationError for a version that is too old."""
    if series_of(version) < OLDEST:
        raise ConfigurationError(
            "pyspark",
            version,
            "is too old for aioparallel.spark, which needs 4.2 or newer on the driver and on the executors: "
            "pip install 'aioparallel[spark]'",
        )


check_pyspark(pyspark.__version__)
