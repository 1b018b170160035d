"""Restores of several partitions at a time: those that cannot get on hold up no others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import replace

import pytest

from aioparallel.config.options import Options
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Fetched, Generation, Span
from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.state.keyed_state import KeyedState
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.extensions import context_of
from tests.support.memory.keeping_state import GROUP, P0, broker_of, sums, totals, write
from tests.unit.persistence.state.test_restores import NAMES, handled
from tests.unit.persistence.state.test_trouble import P1


class Hanging(InMemoryClient):
    """What is read of ``hung`` partitions is waited for, until :meth:`go_on`."""

    def __init__(self, broker: InMemoryBroker, *hung: TopicPartition) -> None:
        super().__init__(broker, GROUP)
        self._hung = set(hung)
        self._goes_on = asyncio.Event()

    def go_on(self) -> None:
        """They answer from now on."""
        self._goes_on.set()

    async def read(
        self, spans: Mapping[TopicPartition, Span | list[Span]], *, as_fetched: bool = False
    ) -> AsyncGenerator[Fetched, None]:
        """See :class:`InMemoryClient`."""
        if self._hung & spans.keys():
            await self._goes_on.wait()
        async for fetched in super().read(spans, as_fetched=as_fetched):
            yield fetched


class Untold(InMemoryClient):
    """Where ``hung`` partitions begin and end is not told, nor that of whatever is asked for with them: as a client
    does that waits for the answers of all brokers."""

    def __init__(self, broker: InMemoryBroker, *hung: TopicPartition) -> None:
        super().__init__(broker, GROUP)
        self.hung = set(hung)
        self.asks = 0

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """See :class:`InMemoryClient`."""
        await self._wait_for(partitions, timeout)
        return await super().beginning_offsets(partitions, timeout)

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """See :class:`InMemoryClient`."""
        await self._wait_for(partitions, timeout)
        return await super().written_end_offsets(partitions, timeout)

    async def _wait_for(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        self.asks += 1
        assert self.asks < 1_000, "it asks without a pause"
        if self.hung & set(partitions):
            await asyncio.sleep(timeout)
            raise TimeoutError


class Member:
    """A keyed state, and assignments of these partitions. All that is committed of each is offset 10."""

    def __init__(self, broker: InMemoryBroker, client: InMemoryClient, *partitions: TopicPartition) -> None:
        policy = replace(sums(), topic=NAMES.increments, snapshots=NAMES.snapshots)
        self.state = KeyedState(policy)
        self.state.attach(context_of(Options(state=policy), GROUP, client, InMemoryProducer(broker)))
        self.found = {partition: Committed(10, "") for partition in partitions}
        for partition in partitions:
            self.state.assigned(Assignment(partition, generation=Generation(9, "m")))

    async def until_ready(self, *partitions: TopicPartition) -> float:
        """Ask until all of these are; the seconds that took."""
        now = asyncio.get_running_loop().time
        began = now()
        async with asyncio.timeout(600):
            while not set(partitions) <= set(await self.state.restore(self.found, 1)):
                pass
        return now() - began

    def waits(self) -> list[str]:
        """What health says of those that are not restored."""
        return [one.message for one in self.state.problems() if one.kind is ProblemKind.STATE_WAITS]


async def test_restores_that_hang_hold_up_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """Twice as many as may be under way at a time: each gives its place back within seconds; those that can be
    restored are, and the others as soon as they are answered. Meanwhile lines tell how many are ready."""
    caplog.set_level(logging.INFO, "aioparallel")
    broker = broker_of(10)
    places = [TopicPartition("in", number) for number in range(10)]
    for place in places:
        write(broker, *range(10), partition=place.partition)
    await handled(broker)
    client = Hanging(broker, *places[:8])
    member = Member(broker, client, *places)
    assert await member.until_ready(*places[8:]) < 10
    assert member.state.statistics().restoring.keys() == {str(place) for place in places[:8]}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            await member.until_ready(*places)
    lines = [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "state_restoring"]
    assert any(line.startswith("restoring the state: 2 partitions are ready, 8 are not") for line in lines)
    client.go_on()
    assert await member.until_ready(*places) < 2
    assert all(member.state.values(place) == totals(*range(10)) for place in places)
    await member.state.close()


async def test_of_many_that_wait_one_is_named() -> None:
    """The others are counted."""
    broker = broker_of(3)
    places = [TopicPartition("in", number) for number in range(3)]
    for place in places:
        write(broker, *range(10), partition=place.partition)
    await handled(broker)
    others = broker.begin_transaction()
    for number in range(3):
        broker.append(NAMES.increments, b"of another group", key=b"k", partition=number, transaction=others)
    member = Member(broker, Hanging(broker, *places), *places)

    def told() -> str:
        return " ".join(member.waits())

    for _ in itertools.takewhile(lambda _: "and 2 more partitions" not in told(), range(60)):
        assert not await member.state.restore(dict.fromkeys(places, Committed(10, "")), 1)
    (message,) = member.waits()
    assert "(and 2 more partitions)" in message
    await member.state.close()


async def test_trouble_that_is_over_is_not_told_any_more() -> None:
    """The increment was waited for, and is found: what takes its time now is the log."""
    broker = broker_of()
    write(broker, *range(10))
    await handled(broker)
    others = broker.begin_transaction()
    broker.append(NAMES.increments, b"of another group", key=b"k", partition=0, transaction=others)
    client = Hanging(broker, P0)
    member = Member(broker, client, P0)
    for _ in itertools.takewhile(lambda _: not member.waits(), range(60)):
        assert not await member.state.restore({P0: Committed(10, "")}, 1)
    assert "a transaction is open" in member.waits()[0]
    broker.end_transaction(others, commit=False)
    for _ in itertools.takewhile(lambda _: member.waits(), range(60)):
        assert not await member.state.restore({P0: Committed(10, "")}, 1)
    assert member.waits() == []
    assert member.state.statistics().restoring == {"in-0": 0.0}
    client.go_on()
    await member.until_ready(P0)
    await member.state.close()


async def test_increments_whose_ends_are_not_told_hold_up_no_others() -> None:
    """One broker does not say where they end: those of other partitions are found within seconds, and its own as soon
    as it does. It is not asked all the time."""
    broker = broker_of(4)
    places = [TopicPartition("in", number) for number in range(4)]
    for place in places:
        write(broker, *range(10), partition=place.partition)
    await handled(broker)
    client = Untold(broker, TopicPartition(NAMES.increments, 1))
    member = Member(broker, client, *places)
    assert await member.until_ready(P0, *places[2:]) < 15
    asks, began = client.asks, asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + 60:
        assert set(await member.state.restore(member.found, 1)) == {P0, *places[2:]}
    assert client.asks - asks < 60
    assert "in-1: its state is not restored yet" in member.waits()[0]
    client.hung.clear()
    assert await member.until_ready(*places) < 15
    assert member.state.values(P1) == totals(*range(10))
    await member.state.close()


async def test_looks_for_what_is_not_told_have_a_pause_between_them() -> None:
    """The answer comes at once, and says nothing of it: a topic that is not there."""
    broker = broker_of(2)
    write(broker, *range(10), partition=1)
    await handled(broker)
    broker.delete_topic(NAMES.increments)
    broker.create_topic(NAMES.increments, 1)
    client = Untold(broker)
    member = Member(broker, client, P1)
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + 20:
        assert not await member.state.restore(member.found, 1)
    assert 2 <= client.asks < 60
    assert "in-1: its state is not restored yet" in member.waits()[0]
    await member.state.close()
