"""Members of share groups at their coordinator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.messages.share_groups import (
    JOIN,
    LEAVE,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aioparallel.group.client import Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, ShareGroupOptions
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.share_assignor import assign_shared

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def beat(
    broker: InMemoryBroker, member: str, epoch: int, now: float = 0.0, *, topics: tuple[str, ...] | None = None
) -> ShareGroupHeartbeatResponse:
    """A heartbeat. To join, the topic is "t"."""
    broker.advance(now)
    request = ShareGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=("t",) if topics is None and epoch == JOIN else topics,
    )
    return broker.coordinate_share("g").heartbeat(request, now)


def refused(broker: InMemoryBroker, member: str, epoch: int, now: float = 0.0) -> ErrorCode:
    with pytest.raises(Refused) as raised:
        beat(broker, member, epoch, now)
    return raised.value.code


def numbers(answer: ShareGroupHeartbeatResponse) -> list[int] | None:
    """The partitions of the assignment."""
    if answer.assignment is None:
        return None
    return [number for topic in answer.assignment.topic_partitions for number in topic.partitions]


def test_members_share_the_partitions(broker: InMemoryBroker) -> None:
    """Each change is told once, to those whom it concerns."""
    first = beat(broker, "a", JOIN)
    assert (numbers(first), first.heartbeat_interval_ms) == ([0, 1], 100)
    assert numbers(beat(broker, "a", first.member_epoch)) is None
    second = beat(broker, "b", JOIN)
    assert second.member_epoch > first.member_epoch
    again = beat(broker, "a", first.member_epoch)
    assert (numbers(again), numbers(second)) in (([0], [1]), ([1], [0]))
    assert again.member_epoch == second.member_epoch
    assert beat(broker, "b", LEAVE).member_epoch == LEAVE
    assert numbers(beat(broker, "a", again.member_epoch)) == [0, 1]
    assert refused(broker, "b", LEAVE) is ErrorCode.UNKNOWN_MEMBER_ID


def test_more_members_than_partitions(broker: InMemoryBroker) -> None:
    """Several have the same one, and each has one."""
    epochs = {name: beat(broker, name, JOIN).member_epoch for name in "abcde"}
    found = [numbers(beat(broker, name, epochs[name], topics=("t",))) for name in "abcde"]
    assert all(found)
    assert {number for some in found if some for number in some} == {0, 1}


def test_an_answer_that_was_lost(broker: InMemoryBroker) -> None:
    """A member with the epoch before is not fenced. It says everything again, and gets its assignment."""
    first = beat(broker, "a", JOIN)
    beat(broker, "b", JOIN)
    lost = beat(broker, "a", first.member_epoch)
    again = beat(broker, "a", first.member_epoch, topics=("t",))
    assert (again.member_epoch, numbers(again)) == (lost.member_epoch, numbers(lost))
    assert refused(broker, "a", first.member_epoch + 7) is ErrorCode.FENCED_MEMBER_EPOCH


def test_sessions_expire(broker: InMemoryBroker) -> None:
    """They stand still while there is no coordinator."""
    broker.configure_share_group("g", ShareGroupOptions(session_timeout=10.0))
    first = beat(broker, "a", JOIN)
    beat(broker, "b", JOIN, 5.0)
    broker.is_coordinator_available = False
    broker.advance(100.0)
    broker.is_coordinator_available = True
    again = beat(broker, "a", first.member_epoch, 100.0)
    assert refused(broker, "b", 99, 111.0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(broker, "a", again.member_epoch, 111.0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_are_not_made_all_the_time(broker: InMemoryBroker) -> None:
    """Like those of Kafka 4.3: the first one comes a second after the first member."""
    broker.configure_share_group("g", ShareGroupOptions(assignment_interval=1.0))
    first = beat(broker, "a", JOIN)
    assert numbers(first) == []
    assert numbers(beat(broker, "a", first.member_epoch, 0.9)) is None
    assigned = beat(broker, "a", first.member_epoch, 1.0)
    assert numbers(assigned) == [0, 1]
    broker.add_partitions("t", 3)
    assert numbers(beat(broker, "a", assigned.member_epoch, 1.9)) is None
    assert numbers(beat(broker, "a", assigned.member_epoch, 2.0)) == [0, 1, 2]


def test_a_group_has_one_type(broker: InMemoryBroker) -> None:
    """Whoever comes first decides."""
    beat(broker, "a", JOIN)
    with pytest.raises(Refused) as raised:
        broker.coordinate("g")
    assert raised.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broker.delete_share_group("g")
    assert broker.commit("g", {P0: Committed(1, "")}, Generation(-1, ""), 0.0) == {P0: None}
    assert refused(broker, "a", JOIN) is ErrorCode.GROUP_ID_NOT_FOUND


def test_who_may_not_join(broker: InMemoryBroker) -> None:
    """More than the group may have; without topics; to a broker without share groups."""
    broker.configure_share_group("g", ShareGroupOptions(max_size=1))
    beat(broker, "a", JOIN)
    assert refused(broker, "b", JOIN) is ErrorCode.GROUP_MAX_SIZE_REACHED
    with pytest.raises(Refused) as raised:
        beat(broker, "c", JOIN, topics=())
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    broker.share_version = 0
    assert refused(broker, "a", JOIN) is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "wrong",
    [
        {"lock_duration": 0},
        {"delivery_count_limit": 1},
        {"delivery_count_limit": 11},
        {"max_record_locks": 0},
        {"assignment_interval": -1},
        {"auto_offset_reset": "none"},
        {"isolation_level": "serializable"},
    ],
)
def test_options_that_cannot_be(wrong: dict[str, object]) -> None:
    """Are refused, with their names."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        ShareGroupOptions(**wrong)  # type: ignore[arg-type]


partitions = st.frozensets(st.sampled_from([TopicPartition("t", number) for number in range(6)]))
members = st.sampled_from("abcdefgh")


@given(wanted=st.dictionaries(members, partitions, min_size=1), before=st.dictionaries(members, partitions))
def test_every_partition_has_a_member_and_every_member_a_partition(
    wanted: dict[str, frozenset[TopicPartition]], before: dict[str, frozenset[TopicPartition]]
) -> None:
    """Of those that it wants. Nothing changes when it is repeated."""
    plan = assign_shared(wanted, before)
    assert plan.keys() == wanted.keys()
    assert all(plan[member] <= wanted[member] for member in plan)
    assert frozenset().union(*plan.values()) == frozenset().union(*wanted.values())
    assert all(plan[member] for member in plan if wanted[member])


@pytest.mark.parametrize(("members", "partitions", "each"), [(2, 4, 1), (3, 4, 1), (5, 4, 2), (8, 4, 2), (12, 4, 3)])
def test_how_many_members_have_a_partition(members: int, partitions: int, each: int) -> None:
    """As in the table of docs/queues.md, which Kafka 4.3.1 was seen to do."""
    every = frozenset(TopicPartition("jobs", number) for number in range(partitions))
    plan = assign_shared({f"m{number}": every for number in range(members)}, {})
    assert [sum(one in mine for mine in plan.values()) for one in sorted(every)] == [each] * partitions
    assert min(map(len, plan.values())) >= 1


@given(count=st.integers(1, 8), every=partitions.filter(bool))
def test_members_that_want_the_same(count: int, every: frozenset[TopicPartition]) -> None:
    """Have about as many partitions, and keep them."""
    wanted = dict.fromkeys("abcdefgh"[:count], every)
    plan = assign_shared(wanted, {})
    sizes = [len(mine) for mine in plan.values()]
    assert max(sizes) - min(sizes) <= 1
    assert assign_shared(wanted, plan) == plan
