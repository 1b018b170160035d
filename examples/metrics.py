"""A plain worker with metrics for Prometheus, and probes, on a port of its own.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8
    python examples/metrics.py 8000
    python examples/orders.py 1000
    curl localhost:8000/metrics    # also /live and /ready

docs/metrics.md explains each figure, and has alert rules and a dashboard.
"""

import asyncio
import json
import os
import sys

from aioparallel import ParallelConsumer, Record
from aioparallel.observe.metrics import PrometheusMetrics

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def bill(record: Record) -> None:
    """Bill one order."""
    json.loads(record.value or b"{}")
    await asyncio.sleep(0.01)  # instead of slow work: a call, a database


def main(port: int) -> None:
    """Run until Ctrl-C."""
    consumer = ParallelConsumer(
        "orders",
        bootstrap_servers=SERVERS,
        group_id="bills",
        extensions=[PrometheusMetrics(port=port)],  # host="0.0.0.0" for scrapes from other machines
    )
    consumer.run_sync(bill)


if __name__ == "__main__":
    main(int(sys.argv[1]))
