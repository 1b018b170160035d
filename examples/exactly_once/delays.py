"""Writes each carrier's delays exactly once; ``python -m examples.exactly_once`` starts and kills it.

    python -m examples.exactly_once.delays localhost:9092 name

Each flight becomes one record of topic ``delays``: its carrier, and its delay in minutes. ``name`` identifies the
member, so that after a restart it ends its open transaction at once.
"""

import asyncio
import json
import random
import sys

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions


async def delay(record: Record[bytes | None, bytes]) -> Outgoing | None:
    """The sleep stands for a request to a service. A flight that never arrived has no delay."""
    await asyncio.sleep(random.uniform(0.005, 0.03))
    flight = json.loads(record.value)
    if flight["arr_delay"] is None:
        return None
    return Outgoing("delays", str(flight["arr_delay"]).encode(), key=flight["carrier"].encode())


def main(servers: str, name: str) -> None:
    """Run until SIGTERM."""
    consumer = ParallelConsumer[bytes | None, bytes](
        "flights",
        bootstrap_servers=servers,
        group_id="delays",
        commits=Transactions(transaction_timeout=2.0),
        max_concurrency=30,
        session_timeout=12.0,
        client_options={"group_instance_id": name},
    )
    consumer.run_sync(delay)


if __name__ == "__main__":
    main(*sys.argv[1:])
