"""A share session and its leader, in virtual time: what becomes of acknowledgements, whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.aiokafka.share_sessions import LeaderSession
from aioparallel.clients.aiokafka.share_state import ShareState
from aioparallel.clients.messages.share_records import ShareAcknowledgeRequest, ShareFetchRequest
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition
from tests.support.virtual_time import VirtualLoop
from tests.unit.clients.share.leader import FakeLeader, Fault

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
DONE, NOT_HELD, UNKNOWN = Acknowledged.DONE, Acknowledged.NOT_HELD, Acknowledged.UNKNOWN
TOPIC_ID = b"the id of topic."
COUNT = 12


@dataclass
class Member:
    """What a client does around one session."""

    leader: FakeLeader
    partitions: int
    state: ShareState = field(init=False)
    session: LeaderSession = field(init=False)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    refreshed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = ShareState("group", "member", self.woken.set)
        self.state.partitions.assign({TopicPartition("topic", number): TOPIC_ID for number in range(self.partitions)})
        self.session = LeaderSession(
            1,
            self.state,
            self.leader.send,
            max_wait=0.5,
            max_bytes=1_000_000,
            retry_backoff=0.1,
            refresh_leaders=lambda: self.refreshed.append("leaders"),
            refresh_topics=lambda: self.refreshed.append("topics"),
            reroute=self.route,
        )
        self.route()

    def route(self) -> None:
        self.state.partitions.route(lambda _partition: 1, asyncio.get_running_loop().time())
        self.session.look()

    async def fetch(self, most: int) -> list[tuple[TopicPartition, int, int]]:
        """Partition, offset and delivery count of each record."""
        while not self.state.acquired:
            self.state.wanted = most
            self.session.look()
            self.woken.clear()
            try:
                await self.woken.wait()
            finally:
                self.state.wanted = 0
        found, self.state.acquired = self.state.acquired, []
        return [
            (one.partition, record.offset, count)
            for one in found
            for record, count in zip(one.records, one.delivery_counts, strict=True)
        ]

    def acknowledge(self, partition: TopicPartition, offset: int, kind: AcknowledgeType) -> list[Acknowledged]:
        results: list[Acknowledged] = []
        found = self.state.partitions.get(partition)
        assert found is not None
        found.acks.acknowledge(offset, kind, lambda result, _until: results.append(result))
        asyncio.get_running_loop().call_soon(self.state.report)
        self.session.look()
        return results


def run(play: Callable[[Member], Awaitable[None]], partitions: int = 1, count: int = COUNT) -> None:
    async def main() -> None:
        member = Member(FakeLeader([(TOPIC_ID, number) for number in range(partitions)], count), partitions)
        running = asyncio.create_task(member.session.run())
        async with asyncio.timeout(3_600):
            await play(member)
            member.session.close()
            await running
        assert member.state.failure is None
        assert member.leader.epoch is None, "the session is closed"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("fault", "results"),
    [
        (Fault.NONE, {DONE}),
        (Fault.NOT_SENT, {DONE}),
        (Fault.REQUEST_LOST, {UNKNOWN}),
        (Fault.ANSWER_LOST, {UNKNOWN}),
        (Fault.HANGS, {UNKNOWN}),
        (Fault.SESSION_LOST, {NOT_HELD}),
        (Fault.WRONG_EPOCH, {DONE}),
        (Fault.SESSION_LIMIT, {DONE}),
        (Fault.SERVER_ERROR, {UNKNOWN}),
        (Fault.NOT_LEADER, {DONE}),
        (Fault.NOT_STORED, {DONE}),
    ],
)
def test_what_becomes_of_acknowledgements(fault: Fault, results: set[Acknowledged]) -> None:
    """Of the request with the fault. The member goes on after it, and all that was not done comes again."""

    async def play(member: Member) -> None:
        some = await member.fetch(COUNT)
        assert len(some) == COUNT
        member.leader.faults.append(fault)
        ended = [member.acknowledge(partition, offset, ACCEPT) for partition, offset, _ in some]
        while not all(ended):
            await asyncio.sleep(0.01)
        assert {result for one in ended for result in one} == results
        while not member.leader.is_done:
            for partition, offset, _ in await member.fetch(COUNT):
                member.acknowledge(partition, offset, ACCEPT)
            await asyncio.sleep(0.1)

    run(play)


def test_acknowledgements_travel_with_a_fetch_only_if_records_come_without_waiting() -> None:
    async def play(member: Member) -> None:
        some = await member.fetch(4)
        for partition, offset, _ in some:
            member.acknowledge(partition, offset, ACCEPT)
        assert len(await member.fetch(COUNT)) == COUNT - 4
        *_, last = member.leader.requests
        assert isinstance(last, ShareFetchRequest)
        assert last.topics
        waiting = asyncio.create_task(member.fetch(COUNT))
        await asyncio.sleep(20)
        before = len(member.leader.requests)
        ended = member.acknowledge(TopicPartition("topic", 0), 5, ACCEPT)
        await asyncio.sleep(1)
        assert ended == [DONE]
        acknowledging = [one for one in member.leader.requests[before:] if isinstance(one, ShareAcknowledgeRequest)]
        assert len(acknowledging) == 1
        waiting.cancel()

    run(play)


def test_waits_grow_while_nothing_happens() -> None:
    """Up to the maximum. Nothing is requested while nobody fetches."""

    async def play(member: Member) -> None:
        await member.fetch(COUNT)
        waiting = asyncio.create_task(member.fetch(COUNT))
        await asyncio.sleep(20)
        waits = [one.max_wait_ms for one in member.leader.requests[1:] if isinstance(one, ShareFetchRequest)]
        assert waits == sorted(waits)
        assert (waits[0], waits[-1]) == (2, 500)
        assert len(waits) < 120
        waiting.cancel()
        await asyncio.sleep(1)
        before = len(member.leader.requests)
        await asyncio.sleep(20)
        assert len(member.leader.requests) == before

    run(play)


def test_a_fetch_does_not_wait_long_while_others_may_be_acknowledged() -> None:
    """Nor while they belong to a partition that is not fetched any more."""

    async def play(member: Member) -> None:
        (partition, offset, _), *_ = await member.fetch(COUNT)
        member.state.partitions.exclude([partition])
        assert len(await member.fetch(COUNT)) == COUNT
        for other in range(COUNT):
            member.acknowledge(TopicPartition("topic", 1), other, ACCEPT)
        waiting = asyncio.create_task(member.fetch(COUNT))
        await asyncio.sleep(0.4)
        began = asyncio.get_running_loop().time()
        ended = member.acknowledge(partition, offset, ACCEPT)
        while not ended:
            await asyncio.sleep(0.001)
        assert ended == [DONE]
        assert asyncio.get_running_loop().time() - began < 0.1
        waiting.cancel()

    run(play, partitions=2)


def test_partitions_leave_a_session() -> None:
    """Nothing is acquired of them any more. What was can be acknowledged."""

    async def play(member: Member) -> None:
        some = await member.fetch(2)
        gone, left = TopicPartition("topic", 0), TopicPartition("topic", 1)
        assert {partition for partition, _, _ in some} == {gone}
        member.state.partitions.assign({left: TOPIC_ID})
        member.route()
        assert {partition for partition, _, _ in await member.fetch(100)} == {left}
        assert member.leader.session == {(TOPIC_ID, 1)}
        ended = [member.acknowledge(partition, offset, ACCEPT) for partition, offset, _ in some]
        await asyncio.sleep(1)
        assert ended == [[DONE], [DONE]]
        assert member.leader.session == {(TOPIC_ID, 1)}

    run(play, partitions=2)


def test_excluded_partitions() -> None:
    """Nothing is acquired of them, until they are included again; also if they are assigned later."""

    async def play(member: Member) -> None:
        paused, other = TopicPartition("topic", 0), TopicPartition("topic", 1)
        partitions = member.state.partitions
        partitions.exclude([paused])
        assert {partition for partition, _, _ in await member.fetch(100)} == {other}
        partitions.assign({paused: TOPIC_ID, other: TOPIC_ID})
        member.route()
        waiting = asyncio.create_task(member.fetch(100))
        await asyncio.sleep(5)
        assert not waiting.done()
        partitions.exclude([])
        member.session.look()
        assert {(partition, count) for partition, _, count in await waiting} == {(paused, 1)}

    run(play, partitions=2)


@pytest.mark.parametrize("fault", [Fault.SESSION_LIMIT, Fault.SERVER_ERROR, Fault.NOT_SENT])
def test_partitions_of_which_nothing_could_be_acquired(fault: Fault) -> None:
    """A broker that refuses has answered: that does not mean that nothing is there."""

    async def play(member: Member) -> None:
        member.leader.faults.extend([fault] * 10)
        waiting = asyncio.create_task(member.fetch(COUNT))
        await asyncio.sleep(1)
        assert member.state.partitions.failing == [TopicPartition("topic", 0)]
        await waiting
        assert member.state.partitions.failing == []

    run(play)


@pytest.mark.parametrize(("fault", "result"), [(Fault.NONE, DONE), (Fault.NOT_SENT, Acknowledged.NOT_SENT)])
def test_handlers_that_end_after_the_member_has_failed(fault: Fault, result: Acknowledged) -> None:
    """It may not read another topic, for example. Each acknowledgement is answered, as the run waits for that."""

    async def play(member: Member) -> None:
        some = await member.fetch(COUNT)
        waiting = asyncio.create_task(member.fetch(COUNT))
        await asyncio.sleep(1)
        member.state.fail(NotAuthorized("the other topic"))
        waiting.cancel()
        await asyncio.sleep(1)
        if fault is not Fault.NONE:
            member.leader.release_all()  # its connection was closed
            member.leader.faults.extend([fault] * 100)
        ended = [member.acknowledge(partition, offset, ACCEPT) for partition, offset, _ in some]
        await asyncio.sleep(2)
        assert ended == [[result]] * COUNT
        requests = len(member.leader.requests)
        await asyncio.sleep(100)
        assert len(member.leader.requests) == requests
        member.leader.faults.clear()
        member.state.failure = None

    run(play)


def test_closing_sends_what_is_due() -> None:
    async def play(member: Member) -> None:
        some = await member.fetch(COUNT)
        ended = [member.acknowledge(partition, offset, ACCEPT) for partition, offset, _ in some]
        member.session.close()
        await asyncio.sleep(1)
        assert ended == [[DONE]] * COUNT

    run(play)


@given(
    st.lists(st.sampled_from([Fault.NONE, Fault.NONE, *Fault]), max_size=25),
    st.lists(st.sampled_from([ACCEPT, ACCEPT, RELEASE, RENEW]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 0.005, 0.2, 5.0, 40.0]), min_size=1, max_size=7),
)
def test_any_faults(faults: list[Fault], kinds: list[AcknowledgeType], times: list[float]) -> None:
    """Each acknowledgement is answered once, DONE is true, and in the end every record is done."""

    async def play(member: Member) -> None:
        member.leader.faults.extend(faults)
        given: list[tuple[tuple[int, int], AcknowledgeType, list[Acknowledged]]] = []
        loop = asyncio.get_running_loop()

        def end(partition: TopicPartition, offset: int, kind: AcknowledgeType) -> None:
            given.append(((partition.partition, offset), kind, member.acknowledge(partition, offset, kind)))
            if kind is RENEW:
                loop.call_later(1.0, end, partition, offset, ACCEPT)

        number = 0
        while not member.leader.is_done:
            some: list[tuple[TopicPartition, int, int]] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    some = await member.fetch(5)
            for partition, offset, count in some:
                number += 1
                kind = kinds[number % len(kinds)] if count < 4 else ACCEPT
                loop.call_later(times[number % len(times)] if count < 4 else 0.0, end, partition, offset, kind)
        await asyncio.sleep(100)
        for place, kind, results in given:
            assert len(results) == 1, (place, kind)
        accepted = [place for place, kind, results in given if kind is ACCEPT and results == [DONE]]
        assert len(accepted) == len(set(accepted))
        assert set(accepted) <= set(member.leader.accepted)
        assert len(member.leader.accepted) == 2 * COUNT

    run(play, partitions=2)


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.REQUEST_LOST, Fault.NOT_SENT])
def test_whether_a_request_that_may_bring_records_is_on_its_way(fault: Fault) -> None:
    """A run that ends waits for it. One that only acknowledges brings nothing."""

    async def play(member: Member) -> None:
        member.leader.faults.append(fault)
        fetching = asyncio.create_task(member.fetch(3))
        await asyncio.sleep(0.0005)
        assert member.session.is_fetching == (fault is not Fault.NOT_SENT)
        partition, offset, _ = (await fetching)[0]
        assert not member.session.is_fetching
        results = member.acknowledge(partition, offset, ACCEPT)
        await asyncio.sleep(0.0005)
        assert isinstance(member.leader.requests[-1], ShareAcknowledgeRequest)
        assert not member.session.is_fetching
        await asyncio.sleep(1)
        assert results == [DONE]

    run(play)
