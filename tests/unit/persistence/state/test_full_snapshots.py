"""Full snapshots that are not written at once, or never: when they are tried again, and who hears of it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from aioparallel.group.client import Committed
from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.state.view import StateView
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until
from tests.unit.persistence.state.test_restores import NAMES, handled, nothing_is_read_again, problems
from tests.unit.persistence.state.test_trouble import both, both_slowly, committed, nothing, running


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


@both_slowly
async def test_a_full_snapshot_that_was_not_written_is_as_due_as_before(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again after half a minute, and not after another ``snapshot_interval``; increments say of when the
    last one is that was written."""
    now = asyncio.get_running_loop().time
    monkeypatch.setattr("aioparallel.persistence.state.keyed_state.steady_time", lambda: 1e9 + now())
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


@both_slowly
async def test_what_holds_no_records_is_passed_by_a_full_snapshot_too(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an aborted transaction has come since the last one: another is due after ``snapshot_interval``, and once it
    is named, retention may take everything. Nobody could tell then that no record was among it."""
    now = asyncio.get_running_loop().time
    monkeypatch.setattr("aioparallel.persistence.state.keyed_state.steady_time", lambda: 1e9 + now())
    broker = broker_of()
    write(broker, *range(20))
    consumer = keeping(broker, sums(snapshot_after=5, snapshot_interval=60), together=together)
    async with running(consumer):
        await until(lambda: consumer.stats().state.snapshots == 1)  # type: ignore[union-attr]
        await asyncio.sleep(120)
        assert consumer.stats().state.snapshots == 1  # type: ignore[union-attr]  # nothing has come
        aborted = broker.begin_transaction()
        for number in (20, 21, 22):
            broker.append("in", b"%d" % number, key=b"k", partition=0, transaction=aborted)
        broker.end_transaction(aborted, commit=False)
        await until(lambda: committed(broker) == 24)
        await until(lambda: consumer.stats().state.snapshots == 2, 5)  # type: ignore[union-attr]
        await asyncio.sleep(120)
        assert consumer.stats().state.snapshots == 2  # type: ignore[union-attr]
    broker.delete_before(P0, 24)
    for _ in range(2):
        consumer = keeping(broker, sums(), together=together)
        async with running(consumer):
            assert consumer.states(P0) == totals(*range(20))


@both_slowly
async def test_a_leader_that_hangs_holds_up_no_full_snapshots_of_others(together: bool) -> None:
    """It leads one partition of their topic: the others have theirs as often as without that, but for seconds; health
    blames the right one, which has its own once the leader is back."""
    broker = InMemoryBroker(nodes=3)
    for topic in ("in", "out", *NAMES):
        broker.create_topic(topic, 3)
        for number in range(3):
            broker.move_leader(TopicPartition(topic, number), 1)
    for topic in NAMES:
        broker.make_compacted(topic)
    broker.move_leader(TopicPartition(NAMES.snapshots, 0), 3)
    consumer = keeping(broker, sums(snapshot_after=20), together=together)
    async with running(consumer):
        broker.hang(3)
        for start in range(0, 400, 20):
            for partition in range(3):
                write(broker, *range(start, start + 20), partition=partition)
            await asyncio.sleep(10)
        assert consumer.stats().state.snapshots >= 2 * 19  # type: ignore[union-attr]
        told = problems(consumer, ProblemKind.STATE_UNSAVED)
        assert [message[:4] for message in told] == ["in-0"]
        assert "no answer within 5 s" in told[0]
        broker.unhang(3)
        await until(lambda: not problems(consumer, ProblemKind.STATE_UNSAVED))
    broker.delete_before(P0, 400)
    consumer = keeping(broker, sums(), together=together)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(400))


@both_slowly
async def test_a_member_whose_clock_was_fast_delays_no_full_snapshot(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its increments say that the last one is of two hours from now. For whoever goes on that counts as now."""
    now, ahead = asyncio.get_running_loop().time, 7_200.0
    monkeypatch.setattr("aioparallel.persistence.state.keyed_state.steady_time", lambda: 1e9 + now() + ahead)
    broker = broker_of()
    write(broker, *range(10))
    await handled(broker)
    assert json.loads(broker.records(NAMES.increments)[-1].value or b"")["at"] / 1_000 >= 1e9 + ahead
    ahead = 0.0
    consumer = keeping(broker, sums(snapshot_after=10_000, snapshot_interval=60), together=together)
    async with running(consumer):
        write(broker, 10)
        await until(lambda: committed(broker) == 11)
        await asyncio.sleep(50)
        assert consumer.stats().state.snapshots == 0  # type: ignore[union-attr]
        await until(lambda: consumer.stats().state.snapshots == 1, 15)  # type: ignore[union-attr]


async def test_the_wall_clock_may_be_put_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, and no full snapshot is due for that; back, and the next one comes in time."""
    broker = broker_of()
    before = time.time()
    consumer = keeping(broker, sums(snapshot_after=10_000, snapshot_interval=0.5))
    async with running(consumer):
        monkeypatch.setattr(time, "time", lambda: before - 3_600)
        write(broker, 0)
        await asyncio.to_thread(time.sleep, 0.6)
        await until(lambda: consumer.stats().state.snapshots == 1)  # type: ignore[union-attr]
        write(broker, 1)
        await until(lambda: committed(broker) == 2)
    told = [json.loads(record.value or b"")["at"] / 1_000 for record in broker.records(NAMES.increments)]
    assert all(before - 1 < at < before + 60 for at in told)
