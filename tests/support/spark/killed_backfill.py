"""``python -m tests.support.spark.killed_backfill DIRECTORY``: three backfills whose handlers hang, to be killed."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from aioparallel.spark import parallel_map
from aioparallel.spark.backfill import FromParquet, Step, ToParquet, backfill
from tests.support.spark.settings import ALONE


def hanging(directory: Path, name: str) -> Step:
    """Some rows are done, the others never."""

    async def hang(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 50:
            (directory / f"started-{name}").touch()
        if row["n"] >= 50:
            await asyncio.Event().wait()
        return row

    return parallel_map(hang, schema="n int, month int")


def main(directory: Path) -> None:
    """To ``whole``, ``parts`` and ``new``."""
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.master("local[3]").config(map=ALONE).config("spark.log.level", "OFF").getOrCreate()
    outputs = {
        "whole": ToParquet(directory / "whole", "overwrite"),
        "parts": ToParquet(directory / "parts", "overwrite", "month"),
        "new": ToParquet(directory / "new"),
    }
    for name, to in outputs.items():
        steps: list[Step] = [lambda frame: frame.coalesce(1), hanging(directory, name)]
        source = FromParquet(directory / "in")
        threading.Thread(target=backfill, args=(spark, source, *steps), kwargs={"to": to}).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
