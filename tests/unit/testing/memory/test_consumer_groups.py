"""Members of groups of the new protocol at their coordinator."""

from __future__ import annotations

import random
import re
from collections.abc import Collection

import pytest

from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.clients.messages.share_groups import ShareGroupHeartbeatRequest
from aioparallel.group.client import Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, ShareGroupOptions
from aioparallel.testing.memory.assignor import Subscription
from aioparallel.testing.memory.consumer_groups import ConsumerMember, numbered
from aioparallel.testing.memory.refused import Refused

SESSION, REBALANCE = 10.0, 5.0


def place(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def beat(
    broker: InMemoryBroker,
    member: str,
    epoch: int,
    owned: set[int] | None = None,
    now: float = 0.0,
    *,
    instance: str | None = None,
    full: bool = False,
    regex: str | None = None,
) -> ConsumerGroupHeartbeatResponse:
    """A heartbeat. It says everything to join, or if ``full``; the topic is "t"."""
    broker.advance(now)
    full = full or epoch == JOIN
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rebalance_timeout_ms=round(REBALANCE * 1000) if full else -1,
        subscribed_topic_names=() if regex else ("t",) if full else None,
        subscribed_topic_regex=regex,
        topic_partitions=numbered(broker, {place(n) for n in owned or ()}) if full or owned is not None else None,
    )
    return broker.coordinate_consumer("g").heartbeat(request, SESSION, now)


def refused(
    broker: InMemoryBroker,
    member: str,
    epoch: int,
    owned: set[int] | None = None,
    now: float = 0.0,
    *,
    instance: str | None = None,
) -> ErrorCode:
    with pytest.raises(Refused) as raised:
        beat(broker, member, epoch, owned, now, instance=instance)
    return raised.value.code


def numbers(answer: ConsumerGroupHeartbeatResponse) -> set[int] | None:
    """The partitions of the assignment."""
    if answer.assignment is None:
        return None
    return {number for topic in answer.assignment.topic_partitions for number in topic.partitions}


def member(broker: InMemoryBroker, member_id: str) -> ConsumerMember:
    group = broker.consumer_groups.group("g")
    assert group is not None
    return group.members[member_id]


def commit(broker: InMemoryBroker, member: str, epoch: int, *partitions: int, now: float = 0.0) -> object:
    """A commit of these partitions: the error codes, or the one of all."""
    offsets = {place(number): Committed(1, "") for number in partitions}
    try:
        results = broker.commit("g", offsets, Generation(epoch, member), now)
    except Refused as error:
        return error.code
    return [results[place(number)] for number in partitions]


@pytest.fixture
def broker() -> InMemoryBroker:
    """With a topic of four partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t", 4)
    return broker


def test_a_partition_moves_when_its_owner_has_given_it_up(broker: InMemoryBroker) -> None:
    """The owner keeps its epoch until a heartbeat without them; the other one has the new epoch before."""
    first = beat(broker, "a", JOIN)
    assert numbers(first) == {0, 1, 2, 3}
    assert numbers(beat(broker, "a", first.member_epoch, {0, 1, 2, 3})) is None
    second = beat(broker, "b", JOIN)
    assert (second.member_epoch, numbers(second)) == (first.member_epoch + 1, set())
    told = beat(broker, "a", first.member_epoch)
    assert (told.member_epoch, numbers(told)) == (first.member_epoch, {0, 1})
    for owned in (None, {0, 1, 2, 3}, {0, 1, 3}):
        assert beat(broker, "a", first.member_epoch, owned).member_epoch == first.member_epoch
        assert numbers(beat(broker, "b", second.member_epoch)) is None
    assert beat(broker, "a", first.member_epoch, {0, 1}).member_epoch == second.member_epoch
    assert numbers(beat(broker, "b", second.member_epoch)) == {2, 3}


def test_free_partitions_come_at_once_and_others_one_by_one(broker: InMemoryBroker) -> None:
    """A member's epoch is the target's while it still waits for some."""
    epochs = {name: beat(broker, name, JOIN).member_epoch for name in "ab"}
    assert numbers(beat(broker, "a", epochs["a"])) == {0, 1}
    epochs["a"] = beat(broker, "a", epochs["a"], {0, 1}).member_epoch
    assert numbers(beat(broker, "b", epochs["b"])) == {2, 3}
    broker.add_partitions("t", 6)
    third = beat(broker, "c", JOIN)
    assert len(numbers(third) or ()) == 2, "the new ones are free"
    broker.consumer_groups.expire("g", "b")
    third = beat(broker, "c", third.member_epoch)
    assert third.member_epoch == beat(broker, "a", epochs["a"]).member_epoch


def test_a_lost_answer_does_no_harm(broker: InMemoryBroker) -> None:
    """The previous epoch is accepted with what the member may have, and told everything again."""
    first = beat(broker, "a", JOIN)
    beat(broker, "b", JOIN)
    beat(broker, "a", first.member_epoch)
    given_up = beat(broker, "a", first.member_epoch, {0, 1}, full=True)
    again = beat(broker, "a", first.member_epoch, {0, 1}, full=True)
    assert again == given_up
    assert (again.member_epoch, numbers(again)) == (first.member_epoch + 1, {0, 1})
    assert refused(broker, "a", first.member_epoch) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(broker, "a", first.member_epoch, {0, 1, 2}) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(broker, "a", again.member_epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_has_given_everything_up(broker: InMemoryBroker) -> None:
    """Under the same id it gets what is assigned to it in its epoch, and others get the rest."""
    first = beat(broker, "a", JOIN)
    second = beat(broker, "b", JOIN)
    beat(broker, "a", first.member_epoch)
    again = beat(broker, "a", JOIN)
    assert (again.member_epoch, numbers(again)) == (second.member_epoch, {0, 1})
    assert numbers(beat(broker, "b", second.member_epoch)) == {2, 3}


def test_one_that_does_not_give_up_is_removed(broker: InMemoryBroker) -> None:
    """After its rebalance timeout, which heartbeats do not prolong."""
    first = beat(broker, "a", JOIN)
    second = beat(broker, "b", JOIN)
    beat(broker, "a", first.member_epoch)
    beat(broker, "a", first.member_epoch, {0, 1, 2, 3}, now=REBALANCE - 0.1)
    answer = beat(broker, "b", second.member_epoch, now=REBALANCE)
    assert numbers(answer) == {0, 1, 2, 3}
    assert answer.member_epoch > second.member_epoch
    assert refused(broker, "a", first.member_epoch, now=REBALANCE) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_ends(broker: InMemoryBroker) -> None:
    """Its partitions are free; while the coordinator is away no session ends."""
    first, second = beat(broker, "a", JOIN), beat(broker, "b", JOIN)
    beat(broker, "b", second.member_epoch, now=SESSION - 1)
    assert beat(broker, "b", second.member_epoch, now=SESSION).member_epoch == second.member_epoch + 1
    assert member(broker, "b").assigned.keys() == {place(number) for number in range(4)}
    assert refused(broker, "a", first.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    broker.go_down()
    broker.advance(100)
    broker.come_back()
    broker.advance(200)
    assert broker.member_ids("g") == ["b"]
    broker.advance(200 + SESSION)
    assert broker.member_ids("g") == []


def test_static_members(broker: InMemoryBroker) -> None:
    """One that has left to return keeps its partitions for a session, also under another member id."""
    first = beat(broker, "a", JOIN, instance="one")
    assert refused(broker, "a2", JOIN, instance="one") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert beat(broker, "a", LEAVE_TO_RETURN, instance="one").member_epoch == LEAVE_TO_RETURN
    second = beat(broker, "b", JOIN)
    assert numbers(second) == set()
    again = beat(broker, "a2", JOIN, instance="one", now=SESSION - 1)
    assert (again.member_epoch, numbers(again)) == (second.member_epoch, {0, 1})
    assert broker.member_ids("g") == ["a2", "b"]
    assert refused(broker, "a", first.member_epoch, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    assert refused(broker, "c", first.member_epoch, instance="three") is ErrorCode.UNKNOWN_MEMBER_ID
    beat(broker, "a2", LEAVE_TO_RETURN, instance="one", now=SESSION)
    broker.advance(2 * SESSION - 0.1)
    assert broker.member_ids("g") == ["a2"]
    broker.advance(2 * SESSION)
    assert broker.member_ids("g") == []


def test_leaving(broker: InMemoryBroker) -> None:
    """What a member has is free at once. A second time nobody knows it."""
    beat(broker, "a", JOIN)
    second = beat(broker, "b", JOIN)
    assert beat(broker, "a", LEAVE).member_epoch == LEAVE
    assert numbers(beat(broker, "b", second.member_epoch)) == {0, 1, 2, 3}
    assert refused(broker, "a", LEAVE) is ErrorCode.UNKNOWN_MEMBER_ID


def test_patterns_and_topics_that_come_and_go(broker: InMemoryBroker) -> None:
    """The next heartbeat of any member finds new topics, and misses deleted ones."""
    first = beat(broker, "a", JOIN, regex="t|u.*")
    assert numbers(first) == {0, 1, 2, 3}
    broker.create_topic("u1", 1)
    second = beat(broker, "a", first.member_epoch)
    assert second.member_epoch == first.member_epoch + 1
    assert second.assignment is not None
    assert len(second.assignment.topic_partitions) == 2
    broker.delete_topic("u1")
    third = beat(broker, "a", second.member_epoch, {0, 1, 2, 3})
    assert third.member_epoch == second.member_epoch + 1
    assert numbers(third) == {0, 1, 2, 3}


def test_a_heartbeat_reads_the_topics_once(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each member: 20 members of 1,000 partitions, each with ten heartbeats a second, would block the loop."""
    epochs = {f"m{number}": beat(broker, f"m{number}", JOIN).member_epoch for number in range(20)}
    read: list[object] = []

    def partitions_of(topics: Collection[str] | re.Pattern[str]) -> frozenset[TopicPartition]:
        read.append(topics)
        return frozenset(map(place, range(4)))

    monkeypatch.setattr(broker, "partitions_of", partitions_of)
    beat(broker, "m19", epochs["m19"])
    assert read == [{"t"}]


@pytest.mark.parametrize("accepts_older", [False, True])
def test_commits_are_checked_by_epoch(broker: InMemoryBroker, accepts_older: bool) -> None:
    """An older epoch is stale. With KIP-1251 it is accepted for partitions that the member has had since then."""
    broker.consumer_groups.accepts_older_epochs = accepts_older
    first = beat(broker, "a", JOIN).member_epoch
    second = beat(broker, "b", JOIN).member_epoch
    beat(broker, "a", first)
    assert commit(broker, "a", first, 0, 3) == [None, None], "also what is being given up"
    assert beat(broker, "a", first, {0, 1}).member_epoch == second
    beat(broker, "b", second)
    stale = ErrorCode.STALE_MEMBER_EPOCH
    assert commit(broker, "a", first, 0, 3) == ([None, stale] if accepts_older else stale)
    assert commit(broker, "a", second, 0) == [None]
    assert commit(broker, "b", second - 1, 3) == ([stale] if accepts_older else stale), "not since then"
    assert commit(broker, "a", second + 1, 0) is stale
    assert commit(broker, "c", second, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(broker, "", -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    for name in "ab":
        beat(broker, name, LEAVE)
    assert commit(broker, "", -1, 0) == [None]


def test_a_group_changes_its_protocol_while_it_is_empty(broker: InMemoryBroker) -> None:
    """Its offsets stay, and generations and epochs ascend together."""
    group = broker.coordinate_classic("g")
    subscription = broker.partitions_of(["t"])
    name = group.join(None, Subscription(subscription), session_timeout=9, rebalance_timeout=9, now=0)
    assert refused(broker, "a", JOIN) is ErrorCode.GROUP_ID_NOT_FOUND
    group.leave(name, 0)
    first = beat(broker, "a", JOIN)
    assert first.member_epoch > 1
    assert commit(broker, "a", first.member_epoch, 0) == [None]
    with pytest.raises(Refused) as raised:
        broker.coordinate_classic("g")
    assert raised.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat(broker, "a", LEAVE)
    group = broker.coordinate_classic("g")
    name = group.join(None, Subscription(subscription), session_timeout=9, rebalance_timeout=9, now=0)
    joined = group.joined(name)
    assert joined is not None
    assert joined.id > first.member_epoch
    assert group.committed([place(0)]) == {place(0): Committed(1, "")}


def test_other_kinds_of_groups(broker: InMemoryBroker) -> None:
    """A share group's id is refused."""
    broker.configure_share_group("g", ShareGroupOptions())
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="s", member_epoch=0, subscribed_topic_names=("t",))
    broker.coordinate_share("g").heartbeat(request, 0)
    assert refused(broker, "a", JOIN) is ErrorCode.GROUP_ID_NOT_FOUND


class Course:
    """Members that come, go, lose answers and give up late."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = InMemoryBroker()
        self.broker.create_topic("t", self.rng.randint(1, 7))
        self.epochs: dict[str, int] = {}
        self.has: dict[str, set[int]] = {}
        self.now = 0.0

    def step(self, name: str) -> None:
        """Something happens."""
        self.now += self.rng.uniform(0, 0.5)
        what = self.rng.random()
        if what < 0.05 or not self.epochs:
            self.epochs[name], self.has[name] = JOIN, set()
        one = self.rng.choice(sorted(self.epochs))
        if what > 0.97:
            del self.epochs[one], self.has[one]  # its session ends by itself
        elif what < 0.94:
            self.beat(one, quick=False)
        elif one in self.broker.member_ids("g"):
            self.broker.expire_session("g", one, self.now)

    def beat(self, name: str, *, quick: bool) -> None:
        """A heartbeat; unless it is quick, its answer may be lost, or followed late."""
        try:
            answer = beat(self.broker, name, self.epochs[name], self.has[name], self.now, full=True)
        except Refused:
            self.epochs[name], self.has[name] = JOIN, set()
            return
        if not quick and self.rng.random() < 0.2:
            return
        self.epochs[name] = answer.member_epoch
        assigned = numbers(answer) or set()
        is_late = not quick and self.rng.random() < 0.3
        self.has[name] = self.has[name] | assigned if is_late else assigned

    def check(self) -> None:
        """What a member may still use, nobody else may."""
        group = self.broker.consumer_groups.group("g")
        assert group is not None
        owned = [one for each in group.members.values() for one in (*each.assigned, *each.revoking)]
        assert len(owned) == len(set(owned))
        assert all(each.epoch <= group.assignment_epoch <= group.epoch for each in group.members.values())


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_has_two_owners(seed: int) -> None:
    """At any moment; and in the end each has one, and all members have as many."""
    course = Course(seed)
    for step in range(300):
        course.step(f"m{step}")
        course.check()
    course.step("last")
    for _ in range(60):
        course.now += 1.0
        for name in sorted(course.epochs):
            course.beat(name, quick=True)
    held = sorted(number for some in course.has.values() for number in some)
    assert held == (sorted(p.partition for p in course.broker.partitions_of(["t"])) if course.epochs else [])
    counts = [len(some) for some in course.has.values()]
    assert not counts or max(counts) - min(counts) <= 1
