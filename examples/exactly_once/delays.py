"""Statistics of each carrier's delays, written exactly once: ``python -m examples.exactly_once`` starts and kills it.

    python -m examples.exactly_once.delays localhost:9092 name

Each flight becomes one record of topic ``delays``: its carrier, and by how many minutes it came late. ``name`` is the
member's, so that one which is started again ends at once what it has left open.
"""

import asyncio
import json
import random
import sys

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions


async def delay(record: Record[bytes | None, bytes]) -> Outgoing | None:
    """A service is asked, say, which takes some milliseconds. A flight that never arrived has no delay."""
    await asyncio.sleep(random.uniform(0.005, 0.03))
    flight = json.loads(record.value)
    if flight["arr_delay"] is None:
        return None
    return Outgoing("delays", str(flight["arr_delay"]).encode(), key=flight["carrier"].encode())


def main(servers: str, name: str) -> None:
    """Until SIGTERM."""
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
