"""The group's state machine, example by example; test_groups_random.py plays with it."""

from __future__ import annotations

import pytest

from aioparallel.group.client import Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription
from aioparallel.testing.memory.groups import Group, GroupState
from aioparallel.testing.memory.refused import Refused

P = [TopicPartition("t", number) for number in range(4)]
ALL = Subscription(frozenset(P))
COMMIT = {P[0]: Committed(1, "")}


def join(group: Group, member_id: str | None = None, now: float = 0.0) -> str:
    """Join with a session of 10 s and a rebalance timeout of 30 s."""
    return group.join(member_id, ALL, session_timeout=10.0, rebalance_timeout=30.0, now=now)


def stable(*members: str | None, now: float = 0.0) -> tuple[Group, list[Generation]]:
    """A group in which so many members share the partitions, and their generations."""
    group = Group("g")
    ids: list[str] = []
    for _ in members:
        ids = [*(join(group, member_id, now) for member_id in ids), join(group, None, now)]
        if len(ids) > 1:  # the rebalance began when the newest joined: the others follow
            ids = [join(group, member_id, now) for member_id in ids]
    generations = []
    for member_id in ids:
        generation = group.joined(member_id)
        assert generation is not None
        group.sync(generation, now)
        generations.append(generation)
    assert state_of(group) is GroupState.STABLE
    return group, generations


def state_of(group: Group) -> GroupState:
    """Where the group stands now (a call, so that a type checker does not take it for unchanged)."""
    return group.state


def code_of(group: Group, generation: Generation, now: float = 0.0) -> ErrorCode | None:
    """How a commit under this generation is refused; None if it is taken."""
    try:
        [code] = group.commit(COMMIT, generation, now).values()
    except Refused as refused:
        return refused.code
    return code


def test_a_lone_member_gets_everything() -> None:
    """A first member joins at once, leads, and gets all by syncing."""
    group, [generation] = stable(None)
    assert group.leader == generation.member_id
    assert group.synced(generation) == frozenset(P)


def test_the_first_waits_for_nobody_the_second_for_the_first() -> None:
    """A newcomer waits until the members there have joined again; then all are in one generation higher."""
    group, [first] = stable(None)
    newcomer = join(group)
    assert state_of(group) is GroupState.PREPARING_REBALANCE
    assert group.joined(newcomer) is None
    with pytest.raises(Refused) as raised:
        group.heartbeat(first, now=1.0)
    assert raised.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    join(group, first.member_id)
    assert state_of(group) is GroupState.COMPLETING_REBALANCE
    assert group.joined(newcomer) == Generation(first.id + 1, newcomer)


def test_a_follower_waits_for_the_leader() -> None:
    """A follower that syncs before the leader waits, and then both have their share."""
    group, [first] = stable(None)
    newcomer = join(group)
    join(group, first.member_id)
    led, followed = (Generation(group.generation, member) for member in (first.member_id, newcomer))
    group.sync(followed, now=0.0)
    assert group.synced(followed) is None
    group.sync(led, now=0.0)
    one, other = group.synced(led), group.synced(followed)
    assert one is not None
    assert other is not None
    assert len(one) == len(other) == 2
    assert one | other == set(P)


def test_commits_in_each_state() -> None:
    """Commits of the current generation are taken while members are still joining (that is when they hand
    over), answered REBALANCE_IN_PROGRESS until the leader has synced, and taken again."""
    group, [first] = stable(None)
    assert code_of(group, first) is None
    newcomer = join(group)
    assert code_of(group, first) is None
    join(group, first.member_id)
    now = Generation(group.generation, first.member_id)
    assert code_of(group, now) is ErrorCode.REBALANCE_IN_PROGRESS
    assert code_of(group, first) is ErrorCode.ILLEGAL_GENERATION
    group.sync(now, now=0.0)
    assert code_of(group, now) is None
    assert code_of(group, Generation(now.id, newcomer)) is None


def test_foreign_commits_are_fenced() -> None:
    """Old and future generations, strangers, and tools while the group has members: nothing is stored."""
    group, [member] = stable(None)
    for generation, code in [
        (Generation(member.id - 1, member.member_id), ErrorCode.ILLEGAL_GENERATION),
        (Generation(member.id + 1, member.member_id), ErrorCode.ILLEGAL_GENERATION),
        (Generation(-1, member.member_id), ErrorCode.ILLEGAL_GENERATION),
        (Generation(member.id, "stranger"), ErrorCode.UNKNOWN_MEMBER_ID),
        (Generation(-1, ""), ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        assert code_of(group, generation) is code
    assert group.offsets == {}


def test_an_empty_group_takes_commits_of_tools_only() -> None:
    """When the last member has left, a commit without generation is taken, one of the member is not."""
    group, [member] = stable(None)
    group.leave(member.member_id, now=1.0)
    assert state_of(group) is GroupState.EMPTY
    assert group.generation == member.id + 1
    assert code_of(group, member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(group, Generation(-1, "")) is None


def test_a_silent_member_expires() -> None:
    """Without heartbeats a member is out after its session timeout, and the others rebalance; heartbeats and
    commits keep it."""
    group, [first, second] = stable(None, None)
    group.heartbeat(first, now=9.0)
    assert code_of(group, second, now=9.5) is None
    group.advance(18.9)
    assert len(group.members) == 2
    group.advance(19.0)
    assert list(group.members) == [second.member_id]
    assert state_of(group) is GroupState.PREPARING_REBALANCE
    assert code_of(group, first) is ErrorCode.UNKNOWN_MEMBER_ID
    group.advance(19.5)
    assert state_of(group) is GroupState.EMPTY


def test_who_does_not_join_in_time_is_out() -> None:
    """At the rebalance timeout the group goes on without members that did not join again, heartbeats or not."""
    group, [first] = stable(None)
    newcomer = join(group, now=1.0)
    for now in (8.0, 16.0, 24.0, 30.5):
        with pytest.raises(Refused):
            group.heartbeat(first, now)
        group.advance(now)
        assert group.joined(newcomer) is None
    assert group.next_deadline() == 31.0
    group.advance(31.0)
    assert group.joined(newcomer) == Generation(first.id + 1, newcomer)
    assert code_of(group, first) is ErrorCode.UNKNOWN_MEMBER_ID


def test_waiting_members_do_not_expire() -> None:
    """Who waits for the others to join, or for the leader to sync, needs no heartbeat meanwhile."""
    group, [first] = stable(None)
    newcomer = join(group, now=0.0)
    with pytest.raises(Refused):
        group.heartbeat(first, now=9.0)
    group.advance(15.0)
    assert newcomer in group.members
    join(group, first.member_id, now=18.0)
    group.sync(Generation(group.generation, newcomer), now=19.0)
    group.heartbeat(Generation(group.generation, first.member_id), now=27.0)
    group.advance(30.0)
    assert newcomer in group.members
    group.sync(Generation(group.generation, first.member_id), now=31.0)
    group.advance(40.9)
    assert newcomer in group.members
    group.advance(41.0)
    assert group.members == {}


def test_rejoining_unchanged_starts_no_rebalance() -> None:
    """A follower that joins again with the same subscription just hears the generation; the leader rebalances."""
    group, [leader, follower] = stable(None, None)
    join(group, follower.member_id)
    assert state_of(group) is GroupState.STABLE
    assert group.joined(follower.member_id) == follower
    join(group, leader.member_id)
    assert state_of(group) is GroupState.PREPARING_REBALANCE


def test_a_stranger_owns_nothing() -> None:
    """What a newcomer claims to own does not keep it from others."""
    group, [first] = stable(None)
    claim = Subscription(frozenset(P), frozenset(P))
    newcomer = group.join(None, claim, session_timeout=10.0, rebalance_timeout=30.0, now=0.0)
    join(group, first.member_id)
    for member in (first.member_id, newcomer):
        group.sync(Generation(group.generation, member), now=0.0)
    assert [len(member.assignment) for member in group.members.values()] == [2, 2]


def test_a_thrown_out_member_cannot_come_back_by_name() -> None:
    """Every request under a forgotten id is refused with UNKNOWN_MEMBER_ID."""
    group, [member] = stable(None)
    group.leave(member.member_id, now=0.0)
    for request in (
        lambda: join(group, member.member_id),
        lambda: group.sync(member, 0.0),
        lambda: group.heartbeat(member, 0.0),
        lambda: group.leave(member.member_id, 0.0),
        lambda: group.joined(member.member_id),
    ):
        with pytest.raises(Refused) as raised:
            request()
        assert raised.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def refusal(group: Group, generation: Generation, instance_id: str | None) -> ErrorCode | None:
    """How each request but a join is refused that names these; all alike."""
    codes: set[ErrorCode | None] = set()
    for ask in (
        lambda: group.heartbeat(generation, 0.0, instance_id),
        lambda: group.sync(generation, 0.0, instance_id),
        lambda: group.synced(generation, instance_id),
        lambda: group.joined(generation.member_id, instance_id),
        lambda: group.commit(COMMIT, generation, 0.0, instance_id),
        lambda: group.commit_in_transaction(COMMIT, generation, instance_id),
    ):
        try:
            ask()
            codes.add(None)
        except Refused as refused:
            codes.add(refused.code)
    [code] = codes
    return code


def join_as(group: Group, instance_id: str, member_id: str | None = None, wanted: Subscription = ALL) -> str:
    """Join as a static member."""
    return group.join(member_id, wanted, session_timeout=10.0, rebalance_timeout=30.0, now=0.0, instance_id=instance_id)


def test_a_static_member_is_replaced() -> None:
    """Who joins with its instance id has its place at once: leader, generation and assignment, nobody joins again.
    What names both the id and the former member is fenced; what names the former member only is of an unknown one."""
    group = Group("g")
    first = Generation(1, join_as(group, "one"))
    group.sync(first, 0.0, "one")
    second = group.joined(join_as(group, "one"), "one")
    assert second is not None
    assert second.id == first.id
    assert second.member_id != first.member_id
    assert group.leader == second.member_id
    assert state_of(group) is GroupState.STABLE
    group.sync(second, 0.0, "one")
    assert group.synced(second, "one") == frozenset(P)
    assert refusal(group, second, "one") is None
    assert refusal(group, first, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert refusal(group, first, None) is ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(Refused, match="FENCED_INSTANCE_ID"):
        join_as(group, "one", first.member_id)
    assert join_as(group, "one", second.member_id) == second.member_id
    assert list(group.members) == [second.member_id]


def test_one_that_wants_something_else_makes_the_group_agree_anew() -> None:
    """Also while it agrees: the one before waits for a join that is another's now."""
    group = Group("g")
    former = join_as(group, "one")
    group.sync(Generation(1, former), 0.0, "one")
    wanted = Subscription(frozenset(P[:2]))
    second = join_as(group, "one", wanted=wanted)
    assert group.joined(second, "one") == Generation(2, second)
    assert state_of(group) is GroupState.COMPLETING_REBALANCE
    third = join_as(group, "one", wanted=wanted)
    with pytest.raises(Refused, match="FENCED_INSTANCE_ID"):
        group.joined(second, "one")
    generation = group.joined(third, "one")
    assert generation == Generation(3, third)
    group.sync(generation, 0.0, "one")
    assert group.synced(generation, "one") == frozenset(P[:2])


def test_a_static_member_that_was_thrown_out_is_unknown() -> None:
    """Nobody has its id: it is no fenced one."""
    group = Group("g")
    generation = Generation(1, join_as(group, "one"))
    group.sync(generation, 0.0, "one")
    group.leave(generation.member_id, 0.0)
    assert refusal(group, generation, "one") is ErrorCode.UNKNOWN_MEMBER_ID
