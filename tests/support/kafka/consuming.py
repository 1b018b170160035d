"""A ParallelConsumer with a group of its own on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final, Unpack

from aioparallel import ParallelConsumer
from aioparallel.config.options import OptionFields
from aioparallel.delivery.producer import Producer
from aioparallel.handlers.stack import HandlersOf
from aioparallel.observe.stats import Stats
from tests.support.waiting import DEADLINE, until

__all__ = ["consume", "consumer_of", "consuming"]

_DEADLINE: Final = 2 * DEADLINE
"""Seconds for all of a run; what is waited for in it has deadlines of its own."""


def consumer_of(
    servers: str,
    topic: str,
    *,
    group_id: str | None = None,
    producer: Producer | None = None,
    **options: Unpack[OptionFields],
) -> ParallelConsumer[Any, Any]:
    """A consumer of a new group, unless one is given."""
    group_id = group_id or f"group-{uuid.uuid4().hex}"
    return ParallelConsumer(topic, bootstrap_servers=servers, group_id=group_id, producer=producer, **options)


async def consume(consumer: ParallelConsumer[Any, Any], handler: HandlersOf[Any, Any]) -> Stats:
    """Run it until it ends by itself (``until="end"``); its last statistics."""
    async with asyncio.timeout(_DEADLINE), consumer:
        await consumer.run(handler)
        return consumer.stats()


@contextlib.asynccontextmanager
async def consuming(
    consumer: ParallelConsumer[Any, Any], handler: HandlersOf[Any, Any], *, drain: bool = True
) -> AsyncIterator[None]:
    """Run it as a task of its own for the length of a block, and stop it then; the block begins when it
    runs."""
    async with asyncio.timeout(_DEADLINE), consumer:
        running = asyncio.create_task(consumer.run(handler))
        try:
            await until(lambda: running.done() or consumer.health().running, what="the consumer runs")
            yield
        finally:
            consumer.stop(drain=drain)
            await running
