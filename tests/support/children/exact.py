"""One member that copies in transactions: ``python -m tests.support.children.exact SERVERS SOURCE TARGET GROUP MILLIS
[instance=NAME] [freeze=PLACE]``. SIGTERM ends it well.

With ``freeze`` it stops itself (SIGSTOP) in its third transaction: ``produce`` before its outputs are sent, ``offsets``
after that, ``end`` after its offsets were accepted, ``ending`` with the end under way. It prints ``frozen`` before, and
the broker that coordinates its transactions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from typing import Any

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions
from aioparallel.event_loop.loop import loop_factory

FREEZES_IN = 3


def freeze(consumer: ParallelConsumer[Any, Any], place: str) -> None:
    """Stop this process in one of its transactions."""
    producer: Any = consumer._producer
    begin, offsets, end = producer.begin, producer.commit_offsets, producer.end
    transactions = 0
    is_over = False

    def stops(at: str) -> bool:
        return transactions == FREEZES_IN and place == at and not is_over

    def stop() -> None:
        nonlocal is_over
        is_over = True
        coordinators = [node for (kind, _), node in producer._brokers._coordinators.items() if kind == 1]
        print("frozen", *coordinators, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    def frozen_begin(epoch: object) -> None:
        nonlocal transactions
        transactions += 1
        if stops("produce"):
            stop()
        begin(epoch)

    async def frozen_offsets(*given: Any) -> object:
        if stops("offsets"):
            stop()
        return await offsets(*given)

    async def frozen_end(*given: Any, commit: bool) -> object:
        if stops("end"):
            stop()
        if stops("ending"):
            asking = asyncio.create_task(end(*given, commit=commit))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            stop()
            return await asking
        return await end(*given, commit=commit)

    producer.begin, producer.commit_offsets, producer.end = frozen_begin, frozen_offsets, frozen_end


async def main(servers: str, source: str, target: str, group: str, millis: str, *options: str) -> None:
    """Copy until SIGTERM."""
    given = dict(option.split("=") for option in options)
    client_options = {"group_instance_id": given["instance"]} if "instance" in given else {}
    consumer = ParallelConsumer(
        source,
        bootstrap_servers=servers,
        group_id=group,
        commits=Transactions(transaction_timeout=2.0),
        max_concurrency=200,
        session_timeout=12.0,
        heartbeat_interval=0.5,
        drain_timeout=5.0,
        client_options=client_options,
    )
    if "freeze" in given:
        freeze(consumer, given["freeze"])

    async def handle(record: Record) -> Outgoing:
        if millis != "0":
            await asyncio.sleep(float(millis) / 1000 * random.uniform(0.5, 1.5))
        return Outgoing(target, record.value, record.key)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async with consumer:
        print("ready", flush=True)
        await consumer.run(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(*sys.argv[1:]))
