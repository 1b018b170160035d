"""The progress of a Spark stream from its checkpoint: batches, and committed offsets by topic and partition.

  python -m aioparallel.spark.status checkpoints/work
  python -m aioparallel.spark.status checkpoints/work --bootstrap-servers localhost:9092

The second one also shows the lag: Spark commits to no group, so tools for the lag of groups do not show it. The stream
may be running. For a declared pipeline: STORAGE/_checkpoints/SINK/FLOW/0.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from aioparallel.records.errors import AioparallelError
from aioparallel.spark.checkpoints import CheckpointStatus, checkpoint_status

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the status of a checkpoint. On failure prints a sentence and exits with code 1."""
    parser = argparse.ArgumentParser(
        prog="python -m aioparallel.spark.status",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", help="directory or URI, as given to checkpointLocation")
    parser.add_argument("--bootstrap-servers", help="the cluster to ask for end offsets, host:port")
    parser.add_argument("--json", action="store_true", help="one JSON object, for other programs")
    options = parser.parse_args(arguments)
    try:
        status = checkpoint_status(options.checkpoint, bootstrap_servers=options.bootstrap_servers)
    except (AioparallelError, OSError) as error:
        parser.exit(1, f"{error}\n")
    if options.json:
        print(as_json(status))
    else:
        show(status, Console())


def as_json(status: CheckpointStatus) -> str:
    """The status as one JSON object: the fields of CheckpointStatus and PartitionStatus, and ``lag``."""
    fields = {each.name: getattr(status, each.name) for each in dataclasses.fields(status)}
    fields["planned_at"] = status.planned_at.isoformat() if status.planned_at else None
    fields["partitions"] = [{**one._asdict(), "lag": one.lag} for one in status.partitions]
    return json.dumps(fields)


def show(status: CheckpointStatus, console: Console) -> None:
    """A line for the batches, and a table of the partitions."""
    ended = "no batch has ended" if status.batch is None else f"batch {status.batch} has ended"
    going = "none is open" if status.open_batch is None else f"batch {status.open_batch} is open"
    at = f", started {status.planned_at:%Y-%m-%d %H:%M:%S} UTC" if status.planned_at else ""
    console.print(f"Query {status.query}: {ended}, {going}{at}", highlight=False, soft_wrap=True)
    if status.other_sources:
        console.print(f"{status.other_sources} more sources are not Kafka", highlight=False)
    table = Table("Source", "Topic")
    for name in ("Partition", "Committed", "Open until", "End", "Lag"):
        table.add_column(name, justify="right")
    for one in status.partitions:
        numbers = (one.partition, one.committed, one.planned, one.end, one.lag)
        table.add_row(one.source, one.topic, *("" if number is None else f"{number:,}" for number in numbers))
    if status.partitions:
        console.print(table)
    lags = [one.lag for one in status.partitions]
    if lags and None not in lags:
        console.print(f"Lag in all: {sum(lag or 0 for lag in lags):,}", highlight=False)


if __name__ == "__main__":
    main()
