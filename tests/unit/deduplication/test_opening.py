"""Partitions that come and go while what was seen of them is looked for."""

from __future__ import annotations

import asyncio

from aioparallel.deduplication.companion import Deduplication
from aioparallel.testing.memory import Fault, Request
from tests.unit.engine.memory import GROUP, committed, until

from .test_deduplicate import Handled
from .world import broker_of, deduplicating, remembered, write


async def test_an_answer_for_a_session_that_went_replaces_nothing() -> None:
    """The committed offset is told late, to an owner that has lost the partition since and has it again: what that has
    seen meanwhile stays known, and is saved before it is committed."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    broker.faults.script(Request.OFFSET_FETCH, Fault(response_delay=5.0))
    async with asyncio.timeout(600), deduplicating(broker, commit_interval=20) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        member = next(iter(broker.group(GROUP).members))
        broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
        await until(lambda: len(handled.sources) == 50)
        assert consumer._engine is not None
        companion = consumer._engine._companion
        assert isinstance(companion, Deduplication)
        (memory,) = companion._memories.values()
        await asyncio.sleep(10)
        assert list(companion._memories.values()) == [memory]
        await until(lambda: committed(broker) == 50)
        assert remembered(broker) == set(range(50))
        consumer.stop()
        await running
