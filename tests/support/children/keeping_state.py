"""One member that keeps a sum for each key: ``python -m tests.support.children.keeping_state SERVERS SOURCE TARGET
GROUP MILLIS [instance=NAME] [together=1] [after=N]``. SIGTERM ends it well.

``MILLIS``: of each handler; ``silent``: none, and no outputs. Each output has the record's number and the sum of all
numbers of its key before it. With ``together`` it commits in transactions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from typing import Any

from aioparallel import Outgoing, ParallelConsumer, Record, State, Transactions
from aioparallel.event_loop.loop import loop_factory
from tests.support.kafka.filling import number_of


def add(total: int, record: Record[Any, Any]) -> int:
    """The sum of the numbers of a key."""
    return total + number_of(record)


def dump(total: int) -> bytes:
    """As text."""
    return b"%d" % total


def sums(source: str, **given: Any) -> State[int]:
    """Of a source's keys, in topics named after it."""
    names = f"{source}-state", f"{source}-snapshots"
    return State(initial=0, apply=add, dump=dump, load=int, topic=names[0], snapshots=names[1], **given)


async def main(servers: str, source: str, target: str, group: str, millis: str, *options: str) -> None:
    """Sum until SIGTERM."""
    given = dict(option.split("=") for option in options)
    client_options = {"group_instance_id": given["instance"]} if "instance" in given else {}
    state = sums(source, snapshot_after=int(given.get("after", "50000")))
    consumer = ParallelConsumer(
        source,
        bootstrap_servers=servers,
        group_id=group,
        state=state,
        commits=Transactions(transaction_timeout=2.0) if "together" in given else None,
        max_concurrency=200,
        session_timeout=12.0,
        heartbeat_interval=0.5,
        drain_timeout=5.0,
        client_options=client_options,
    )

    async def handle(record: Record) -> Outgoing | None:
        if millis == "silent":
            return None
        if millis != "0":
            await asyncio.sleep(float(millis) / 1000 * random.uniform(0.5, 1.5))
        return Outgoing(target, b"%d %d" % (number_of(record), state.of(record)), record.key)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async with consumer:
        print("ready", flush=True)
        await consumer.run(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(*sys.argv[1:]))
