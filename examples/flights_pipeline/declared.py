"""Runs the declared pipeline, and avoids the traps of its command (docs/spark.md, "Declared pipelines")."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml

from aioparallel import AioparallelError
from aioparallel.spark.checkpoints import checkpoint_status
from aioparallel.spark.connector_jars import kafka_jars
from examples.flights.progress import Show
from examples.flights_pipeline.programs import QUICK_START, run_program
from examples.flights_pipeline.settings import PROJECT, Settings

__all__ = ["run_declared"]

# The listener's lines: "to_work: running, batch 1: 50,000 rows, 12,345 rows/s, ..., lag 0, 100,000 rows in 2 batches"
_PROGRESS = re.compile(
    r"to_work: \w+, (?:batch \d+: [\d,]+ rows, (?P<rate>[\d,.]+ rows/s).*, )?(?P<rows>[\d,]+) rows in"
)

_AT_START = "-Dspark.ui.enabled=false -Dspark.ui.showConsoleProgress=false"


async def run_declared(settings: Settings, servers: str, show: Show) -> None:
    """Run it until the flow has read all of topic ``raw``. Raises AioparallelError if it has not.

    After a run that was killed it repeats the open micro-batch, and writes all of it again.
    """

    def hear(line: str) -> None:
        if (found := _PROGRESS.search(line)) is not None:
            show(int(found["rows"].replace(",", "")), found["rate"] or "")

    _copy_project(settings, servers)
    await run_program("the declared pipeline", _command(settings), settings.logs / "declared.log", hear)
    # "Run is COMPLETED" and exit code 0 also come if nothing ran, as after --refresh of a sink: check the checkpoint.
    status = checkpoint_status(settings.checkpoint, bootstrap_servers=servers)
    if any(one.lag != 0 for one in status.partitions) or not status.partitions:
        raise AioparallelError(f"the declared pipeline ended before the topic did: {status.partitions}")


def _copy_project(settings: Settings, servers: str) -> None:
    """Copy the project with the paths of this run: ``storage`` must be an absolute URI in the file."""
    shutil.copytree(PROJECT / "transformations", settings.project / "transformations", dirs_exist_ok=True)
    spec = yaml.safe_load((PROJECT / "spark-pipeline.yml").read_text())
    spec["storage"] = settings.storage.absolute().as_uri()
    spec["configuration"] |= {
        "spark.flights.servers": servers,
        "spark.flights.airlines": settings.airlines.as_uri(),
        "spark.flights.per_trigger": str(settings.per_trigger),
    }
    (settings.project / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))


def _command(settings: Settings) -> list[str]:
    return [
        _script(),
        "run",
        # --master is refused.
        "--remote",
        "local[2]",
        # Settings that are fixed when Spark starts must be here, and at most two besides the jars: a local Spark gets
        # them in groups of ten, of which eight are Spark's own in the first, and silently drops all but the last group.
        # Java's properties avoid that.
        "--jars",
        ",".join(kafka_jars()),
        "--conf",
        f"spark.driver.extraJavaOptions={QUICK_START} {_AT_START}",
        "--spec",
        str((settings.project / "spark-pipeline.yml").absolute()),
    ]


def _script() -> str:
    """``spark-pipelines`` of the installed PySpark."""
    import pyspark  # noqa: PLC0415 - large

    return str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
