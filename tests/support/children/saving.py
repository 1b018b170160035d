"""The consumer of examples/batch_to_database.py in a process of its own, with a session so short that the next process
gets its partitions soon. The arguments: brokers, and the database's address."""

from __future__ import annotations

import sys

from aioparallel import batches
from aioparallel.testing.processes.parent import run_until_parent_ends
from examples.batch_to_database import save, saving


async def save_flights(servers: str, address: str) -> None:
    """To the end of the topic."""
    consumer = saving(address, bootstrap_servers=servers, session_timeout=2, heartbeat_interval=0.5)
    async with consumer:
        await consumer.run(batches(save, size=500))


if __name__ == "__main__":
    run_until_parent_ends(save_flights(*sys.argv[1:]))
