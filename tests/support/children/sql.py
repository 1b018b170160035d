"""One member that writes into a database: ``python -m tests.support.children.sql SERVERS TOPIC GROUP DATABASE MILLIS
[instance=NAME] [freeze=PLACE] [batches=SIZE]``. SIGTERM ends it well.

With ``freeze`` it stops itself (SIGSTOP) in a transaction: ``first`` before its first statement, ``epoch`` after the
epoch was asked for, ``commit`` before COMMIT is sent, ``committing`` with COMMIT under way; or ``folding``, ``taking``
with the locks of a fold or a take-over. It prints ``frozen``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.event_loop.loop import loop_factory
from aioparallel.handlers.batches import Batch, batches
from aioparallel.persistence.sql import SqlStore, opened
from aioparallel.persistence.sql.statements import Statements
from tests.support.kafka.filling import number_of

AT_ONCE = 20
FREEZES_AT = 50
"""Transactions before."""
INSERT = text("INSERT INTO results (key, number, member) VALUES (:key, :number, :member)")


def freeze(place: str) -> None:
    """Stop this process in one of its transactions."""
    kind: Any = Statements if place in ("folding", "taking") else opened._OfAsyncpg
    methods = {"commit": "commit", "committing": "commit", "folding": "still_owned", "taking": "take"}
    method = {"first": "begin", "epoch": "add_done", **methods}[place]
    freezes_at = {"folding": 2, "taking": 1}.get(place, FREEZES_AT)
    ask, count = getattr(kind, method), 0

    def stop() -> None:
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    async def asked(transaction: Any, *given: Any) -> Any:
        nonlocal count
        count += 1
        if count != freezes_at:
            return await ask(transaction, *given)
        if place == "commit":
            stop()
            return await ask(transaction, *given)
        asking = asyncio.create_task(ask(transaction, *given))
        if place == "committing":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            await asyncio.wait([asking])
        stop()
        return await asking

    setattr(kind, method, asked)


async def main(servers: str, topic: str, group: str, database: str, millis: str, *options: str) -> None:
    """Write until SIGTERM."""
    given = dict(option.split("=") for option in options)
    engine = create_async_engine(database, pool_size=AT_ONCE + 1, pool_pre_ping=False)
    store = SqlStore(engine)
    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        commits=store,
        max_concurrency=AT_ONCE,
        session_timeout=6.0,
        heartbeat_interval=0.5,
        drain_timeout=3.0,
        failures=FailurePolicy(retry=RetryPolicy(first_delay=0.1, max_delay=1.0)),
        client_options={"group_instance_id": given["instance"]} if "instance" in given else {},
    )
    name = f"{os.getpid()}"

    async def save(record: Record, connection: AsyncConnection) -> None:
        if millis != "0":
            await asyncio.sleep(float(millis) / 1000 * random.uniform(0.5, 1.5))
        values = {"key": (record.key or b"").decode(), "number": number_of(record), "member": name}
        await connection.execute(INSERT, values)

    async def save_batch(batch: Batch[Record], connection: AsyncConnection) -> None:
        rows = [{"key": (record.key or b"").decode(), "number": number_of(record), "member": name} for record in batch]
        await connection.execute(INSERT, rows)

    if "freeze" in given:
        freeze(given["freeze"])
    handler: Any = store.handler(save)
    if "batches" in given:
        handler = batches(store.handler(save_batch), size=int(given["batches"]), linger=0.02)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async with consumer:
        print("ready", flush=True)
        await consumer.run(handler)
    await engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(*sys.argv[1:]))
