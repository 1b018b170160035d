"""A run whose ``group_instance_id`` another process has: it ends with that, wherever it stands, and commits nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from aioparallel import ParallelConsumer, ProblemKind
from aioparallel.records.errors import InstanceFenced
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.memory.consuming import T0, Seen, committed, produce
from tests.support.waiting import until


def static(broker: InMemoryBroker, heartbeat: float = 0.02, **options: Any) -> ParallelConsumer[Any, Any]:
    """A consumer of group "g" with the instance id "one"."""
    client = InMemoryClient(
        broker, "g", session_timeout=100 * heartbeat, heartbeat_interval=heartbeat, group_instance_id="one"
    )
    return ParallelConsumer("t", group_id="g", client=client, drain_timeout=1, **options)


async def test_the_first_ends_and_the_second_goes_on(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Under load: each has called the handler for a record once at most, and the positions are the second's."""
    produce(broker, [b"%d" % number for number in range(1_000)])
    first, second = Seen(0.01), Seen(0.01)
    async with static(broker, max_concurrency=10, commit_interval=0.1) as fenced:
        running = asyncio.create_task(fenced.run(first))
        await until(lambda: len(first.ended) >= 300)
        async with static(broker, max_concurrency=10, commit_interval=0.1) as staying:
            others = asyncio.create_task(staying.run(second))
            with pytest.raises(
                InstanceFenced, match=r"group 'g': another process .* group_instance_id 'one'"
            ) as raised:
                await running
            assert not fenced.health().live
            assert [(one.kind, str(raised.value) in one.message) for one in fenced.health().problems] == [
                (ProblemKind.FAILED, True)
            ]
            await fenced.__aexit__(None, None, None)
            await until(lambda: committed(broker) == 1_000)
            assert staying.health().healthy
            staying.stop()
            await others
    for seen in (first, second):
        assert max(Counter(record.offset for record in seen.started).values()) == 1
    assert {record.offset for record in first.ended + second.ended} == set(range(1_000))
    assert len(first.started) + len(second.started) < 1_200
    assert [getattr(one, "action", "") for one in caplog.records].count("partitions_lost") == 1


@pytest.mark.parametrize("paused", [False, True])
async def test_it_ends_also_when_it_reads_nothing(broker: InMemoryBroker, paused: bool) -> None:
    """Idle, or paused."""
    async with static(broker) as fenced, static(broker) as staying:
        running = asyncio.create_task(fenced.run(Seen()))
        await until(lambda: fenced.health().joined)
        if paused:
            fenced.pause()
        others = asyncio.create_task(staying.run(Seen()))
        with pytest.raises(InstanceFenced):
            await running
        staying.stop()
        await others


@pytest.mark.parametrize("heartbeat", [0.02, 1_000.0], ids=["heartbeat", "last commit"])
async def test_it_is_heard_at_the_end_too(broker: InMemoryBroker, heartbeat: float) -> None:
    """While it drains, a heartbeat tells, or only the last commit: the run that was to end raises it, as what it has
    done last is done again by the other one."""
    produce(broker, [b"a", b"b"])
    first, second = Seen(0.5), Seen()
    async with static(broker, heartbeat, commit_interval=1_000) as fenced, static(broker) as staying:
        running = asyncio.create_task(fenced.run(first))
        await until(lambda: len(first.started) == 2)
        others = asyncio.create_task(staying.run(second))
        await until(lambda: staying.health().joined if staying._engine else False)
        fenced.stop()
        with pytest.raises(InstanceFenced):
            await running
        assert len(first.ended) == (0 if heartbeat < 1 else 2)
        await until(lambda: len(second.ended) == 2)
        staying.stop()
        await others
    assert committed(broker, T0) == 2
