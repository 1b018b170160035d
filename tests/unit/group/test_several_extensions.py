"""Several extensions of one consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from aioparallel import (
    Committed,
    ConfigurationError,
    Extension,
    ParallelConsumer,
    PartitionState,
    Problem,
    ProblemKind,
    Record,
    Stats,
    TopicPartition,
)
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Generation
from aioparallel.group.extensions import Extensions
from tests.support.extensions import (
    GROUP,
    P0,
    P1,
    Noting,
    Only,
    broker_of,
    committed,
    consumer_of,
    fails,
    nothing,
)
from tests.support.waiting import until


async def test_several_are_called_in_order_and_left_in_reverse() -> None:
    broker, calls = broker_of(), list[str]()
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(broker, Noting(calls, "1 "), Noting(calls, "2 "), until="end", value_deserializer=int)
    async with consumer:
        await consumer.run(nothing)
    for hook in ("attach", "check", "handlers", "start", "assigned", "restore", "select", "completed", "before_commit"):
        assert [call for call in calls if call.endswith(f" {hook}")][:2] == [f"1 {hook}", f"2 {hook}"]
    for hook in ("released", "stop", "close", "attempted"):
        assert [call for call in calls if call.endswith(f" {hook}")] == [f"2 {hook}", f"1 {hook}"]


def test_a_record_that_a_later_one_leaves_out_is_complete_for_the_first() -> None:
    assignment = Assignment(P0, generation=Generation(1, "m"))
    first, second = Only(1, 2, 3), Only(2)
    assignment.extend((first, second), fails)
    records = [Record(*P0, offset, b"k", b"v") for offset in range(4)]
    assert [record.offset for record in assignment.register(records, 4)] == [2]
    assert (first.asked, second.asked) == ([0, 1, 2, 3], [1, 2, 3])
    assert (first.done, second.done) == ([1, 3], [])
    assignment.complete(2)
    assert (first.done, second.done) == ([1, 3, 2], [2])
    assert assignment.ledger.next_commit == 4


def test_all_states_hear_of_a_record_that_is_given_up() -> None:
    heard: list[tuple[str, int]] = []

    class Hearing(PartitionState):
        def __init__(self, name: str) -> None:
            self.name = name

        def gave_up(self, offset: int) -> None:
            heard.append((self.name, offset))

    assignment = Assignment(P0, generation=Generation(1, "m"))
    assignment.extend((Hearing("a"), PartitionState(), Hearing("b")), fails)
    assignment.gave_up(7)
    assert heard == [("a", 7), ("b", 7)]


class Restoring(Extension):
    """Is ready with the partitions in ``ready``, and notes what it is asked for."""

    def __init__(self, *ready: TopicPartition) -> None:
        self.ready, self.asked = set(ready), list[set[TopicPartition]]()
        self.pause: asyncio.Event | None = None

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        self.asked.append(set(positions))
        if self.pause is not None:
            await self.pause.wait()
        return self.ready


async def test_a_partition_is_ready_when_all_are_and_none_is_asked_again() -> None:
    first, second = Restoring(P0, P1), Restoring(P1)
    extensions = Extensions((first, second))
    ends = asyncio.get_running_loop().time() + 5
    assert set(await extensions.restore({P0: None, P1: None}, ends)) == {P1}
    second.ready.add(P0)
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert (first.asked, second.asked) == ([{P0, P1}], [{P0, P1}, {P0}])
    extensions.assigned(Assignment(P0, generation=Generation(1, "m")))
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    extensions.released(P0)
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert first.asked == [{P0, P1}, {P0}, {P0}]


@pytest.mark.parametrize("how", ["released", "assigned"])
async def test_an_answer_for_an_earlier_assignment_counts_for_nothing(how: str) -> None:
    one = Restoring(P0)
    one.pause = asyncio.Event()
    extensions = Extensions([one])
    ends = asyncio.get_running_loop().time() + 5
    late = asyncio.create_task(extensions.restore({P0: None}, ends))
    await asyncio.sleep(0)
    if how == "released":
        extensions.released(P0)
    else:
        extensions.assigned(Assignment(P0, generation=Generation(1, "m")))
    one.pause.set()
    assert list(await late) == []
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert one.asked == [{P0}, {P0}]


async def test_all_are_stopped_and_closed_though_one_raises() -> None:
    broker, calls = broker_of(), list[str]()

    class Failing(Noting):
        async def stop(self) -> None:
            await super().stop()
            raise LookupError("stop")

        async def close(self) -> None:
            await super().close()
            raise LookupError("close")

    consumer = consumer_of(broker, Noting(calls, "1 "), Failing(calls, "2 "), until="end")
    with pytest.raises(LookupError):
        async with consumer:
            await consumer.run(nothing)
    assert calls[-4:] == ["2 stop", "1 stop", "2 close", "1 close"]


async def test_problems_and_statistics_have_theirs() -> None:
    broker = broker_of()

    class Telling(Extension):
        def problems(self) -> list[Problem]:
            return [Problem(ProblemKind.EXTENSION, "the disk is full")]

        def stats(self, found: Stats) -> Stats:
            return replace(found, copies=found.copies + 7)

    async with consumer_of(broker, Telling(), Telling()) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().running)
        assert [one.message for one in consumer.health().problems].count("the disk is full") == 2
        assert consumer.stats().copies == 14
        consumer.stop()
        await running


def test_two_that_replace_the_same_are_refused() -> None:
    class Client(Extension):
        def client(self, group_id: str, member_of: Any) -> Any:
            return member_of(group_id)

    with pytest.raises(ConfigurationError, match="has a client, and so has"):
        ParallelConsumer("t", group_id=GROUP, extensions=[Client(), Client()])


async def test_nothing_is_committed_that_a_state_does_not_know_to_be_left_out() -> None:
    """The state of the first raises when it hears of a record that the second leaves out."""

    class FailingState(PartitionState):
        def completed(self, offset: int) -> None:
            raise LookupError("completed")

    class Failing(Extension):
        def assigned(self, assignment: Assignment) -> PartitionState:
            return FailingState()

    class Leaving(Extension):
        def assigned(self, assignment: Assignment) -> PartitionState:
            return Only()

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    with pytest.raises(LookupError, match="completed"):
        async with consumer_of(broker, Failing(), Leaving(), until="end") as consumer:
            await consumer.run(nothing)
    assert not committed(broker)
