"""What ``State.apply`` is given, and where it cannot be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import ConfigurationError, Record
from tests.support.memory.keeping_state import broker_of, keeping, sums, write


async def nothing(record: Record) -> None:
    """Handles it."""


@pytest.mark.parametrize("together", [False, True], ids=["at least once", "transactions"])
async def test_a_compacted_topic_has_no_state(together: bool) -> None:
    """Compaction removes records that the state is made of."""
    broker = broker_of()
    broker.make_compacted("in")
    with pytest.raises(ConfigurationError, match=r"'in': cannot have a state: its cleanup.policy is compact"):
        async with asyncio.timeout(60), keeping(broker, sums(), together=together, until="end") as consumer:
            await consumer.run(nothing)


async def test_apply_is_watched_for_a_while_and_then_trusted() -> None:
    """Values that could be changed are dumped before and after it, for the first thousand records. The sums are right
    on both sides of that."""
    broker, dumps, seen = broker_of(), 0, dict[int, int]()

    def add(values: list[int], record: Record[Any, Any]) -> list[int]:
        return [sum(values) + int(record.value)]

    def dump(values: list[int]) -> bytes:
        nonlocal dumps
        dumps += 1
        return b"%d" % sum(values)

    def load(dumped: bytes) -> list[int]:
        return [int(dumped)]

    state: Any = sums(initial=[], apply=add, dump=dump, load=load, snapshot_after=1_000_000)
    write(broker, *range(3_000))

    async def handle(record: Record) -> None:
        seen[record.offset] = sum(state.of(record))

    async with asyncio.timeout(60), keeping(broker, state, until="end") as consumer:
        await consumer.run(handle)
    assert seen == {n: sum(range(n % 10, n, 10)) for n in range(3_000)}
    assert dumps < 3_000
