"""The assignor: fair, complete, and never the same partition twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription, assign


def partitions(count: int) -> frozenset[TopicPartition]:
    """Of topic "t"."""
    return frozenset(TopicPartition("t", number) for number in range(count))


@given(members=st.integers(1, 6), count=st.integers(0, 20))
def test_everything_is_shared_evenly(members: int, count: int) -> None:
    """Without owners, every partition goes to one member, and counts differ by one at most."""
    shares = assign({f"m{number}": Subscription(partitions(count)) for number in range(members)})
    assert sorted(p for share in shares.values() for p in share) == sorted(partitions(count))
    sizes = {len(share) for share in shares.values()}
    assert max(sizes) - min(sizes) <= 1


def test_who_did_not_ask_gets_nothing() -> None:
    """A member only gets partitions it subscribed to."""
    other = frozenset({TopicPartition("other", 0)})
    shares = assign({"a": Subscription(partitions(2)), "b": Subscription(partitions(2) | other)})
    assert other <= shares["b"]
    assert shares["a"] | shares["b"] == partitions(2) | other
    assert shares["a"].isdisjoint(shares["b"])


@given(owners=st.lists(st.integers(0, 4), max_size=20), members=st.integers(1, 5))
def test_moving_takes_two_steps(owners: list[int], members: int) -> None:
    """What another member owns is given to nobody at first. Once it was given up, the next round shares all
    evenly, and moves nothing further."""
    every = partitions(len(owners))
    owned: dict[str, frozenset[TopicPartition]] = {
        f"m{number}": frozenset(p for p in every if owners[p.partition] == number) for number in range(members)
    }
    first = assign({member: Subscription(every, owns) for member, owns in owned.items()})
    for member, share in first.items():
        for other, owns in owned.items():
            assert other == member or share.isdisjoint(owns)
    kept = {member: share & owned[member] for member, share in first.items()}
    second = assign({member: Subscription(every, first[member]) for member in owned})
    assert sorted(p for share in second.values() for p in share) == sorted(every)
    sizes = {len(share) for share in second.values()}
    assert max(sizes) - min(sizes) <= 1
    for member, share in second.items():
        assert kept[member] <= share
    assert assign({member: Subscription(every, share) for member, share in second.items()}) == second


def test_the_order_of_members_does_not_matter() -> None:
    """The same members give the same shares, whoever comes first."""
    members = {name: Subscription(partitions(7)) for name in ("b", "a", "c")}
    assert assign(members) == assign(dict(sorted(members.items())))


def test_nobody_gets_nothing() -> None:
    """An empty group has an empty assignment."""
    assert assign({}) == {}
