"""Full snapshots that are not written at once, or never: when they are tried again, and who hears of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from aioparallel.group.client import Committed
from aioparallel.observe.health import ProblemKind
from aioparallel.state.view import StateView
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until
from tests.unit.state.test_restores import NAMES, handled, nothing_is_read_again, problems
from tests.unit.state.test_trouble import both, committed, nothing, running


async def test_a_committed_text_that_is_no_map_holds_up_no_full_snapshot() -> None:
    """Another program has committed it: full snapshots are written beside it, and named, and found."""
    broker = broker_of()
    write(broker, *range(20))
    await handled(broker)
    broker.group(GROUP).offsets[P0] = Committed(20, "of another program")
    consumer = keeping(broker, sums(snapshot_after=5))
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(20))
        await until(lambda: consumer.stats().state.snapshots == 1)  # type: ignore[union-attr]
        write(broker, *range(20, 40))
        await until(lambda: consumer.stats().state.snapshots == 2)  # type: ignore[union-attr]
    await nothing_is_read_again(broker, 40)


@both
async def test_a_full_snapshot_that_was_not_written_is_as_due_as_before(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again after half a minute, and not after another ``snapshot_interval``; increments say of when the
    last one is that was written."""
    now = asyncio.get_running_loop().time
    monkeypatch.setattr("aioparallel.state.companion.time", SimpleNamespace(time=lambda: 1e9 + now()))
    broker = broker_of()

    def told() -> list[int]:
        return [json.loads(record.value or b"")["at"] for record in broker.records(NAMES.increments)]

    consumer = keeping(broker, sums(snapshot_after=10_000, snapshot_interval=60), together=together)

    async def fails() -> None:
        broker.deny_topic(NAMES.snapshots)
        await asyncio.sleep(58)
        await until(lambda: problems(consumer, ProblemKind.STATE_UNSAVED), 5)
        broker.deny_topic(NAMES.snapshots, denied=False)

    async with running(consumer):
        write(broker, *range(10))
        await fails()
        await asyncio.sleep(29)
        assert problems(consumer, ProblemKind.STATE_UNSAVED)
        await until(lambda: consumer.stats().state.snapshots == 1, 3)  # type: ignore[union-attr]
        await until(lambda: told()[-1] != told()[0], 1)
        written = told()[-1]
        assert written / 1_000 - 1e9 == pytest.approx(now(), abs=1)
        write(broker, 10)
        await fails()
        write(broker, 11)
        await until(lambda: committed(broker) == 12)
        assert told()[-1] == written


@both
@pytest.mark.parametrize("options", [{}, {"until": "end"}], ids=["meanwhile", "at its end"])
async def test_a_defect_where_full_snapshots_are_written_ends_the_run(
    together: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does in whatever else goes on by itself: restores would take longer and longer, and nobody would know. All
    else is committed, and given away."""
    broker = broker_of()

    def broken(view: StateView) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(StateView, "take", broken)
    consumer = keeping(broker, sums(snapshot_after=5), together=together, **options)
    write(broker, *range(10))
    async with asyncio.timeout(60), consumer:
        with pytest.raises(LookupError, match="a defect"):
            await consumer.run(nothing)
    assert problems(consumer, ProblemKind.FAILED)
    assert committed(broker) == 10
    assert not broker.group(GROUP).members
