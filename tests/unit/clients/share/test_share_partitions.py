"""Partitions of a member of a share group: assigned, led by a broker, and with acquired offsets."""

from __future__ import annotations

from aioparallel.clients.aiokafka.share_partitions import SharePartition, SharePartitions
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.record import TopicPartition

ONE, TWO = TopicPartition("topic", 0), TopicPartition("topic", 1)
OLD, NEW = b"the id of topic.", b"another id of it"


def routed(partitions: SharePartitions, leaders: dict[TopicPartition, int], now: float = 0.0) -> dict[int, list[int]]:
    partitions.route(leaders.get, now)
    return {leader: [one.partition.partition for one in partitions.of(leader)] for leader in partitions.leaders()}


def held(partitions: SharePartitions, which: TopicPartition) -> SharePartition:
    found = partitions.get(which)
    assert found is not None
    found.acks.acquired([5], 30.0, 31.0)
    return found


def ignored(_result: Acknowledged, _until: float) -> None:
    """Somebody's callback."""


def test_partitions_go_to_their_leaders() -> None:
    partitions = SharePartitions()
    partitions.assign({ONE: OLD, TWO: OLD})
    assert routed(partitions, {ONE: 1, TWO: -1}) == {1: [0]}
    assert partitions.leaderless == [TWO]
    assert routed(partitions, {ONE: 1, TWO: 2}) == {1: [0], 2: [1]}
    assert partitions.leaderless == []


def test_a_partition_stays_while_something_is_acquired() -> None:
    partitions = SharePartitions()
    partitions.assign({ONE: OLD, TWO: OLD})
    found = held(partitions, ONE)
    partitions.assign({})
    assert partitions.assigned == set()
    assert routed(partitions, {ONE: 1, TWO: 1}) == {1: [0]}
    found.acks.acknowledge(5, AcknowledgeType.ACCEPT, ignored)
    group = found.acks.take(0.0)
    assert group is not None
    found.acks.done(group, 1.0)
    assert [one.result for one in partitions.ended] == [Acknowledged.DONE]
    assert routed(partitions, {ONE: 1}) == {}
    assert partitions.get(ONE) is None


def test_another_leader_knows_of_no_locks() -> None:
    """Also if there was none in between. The same one again does."""
    for leaders, is_doubted in (([1, 1], False), ([1, -1, 1], False), ([1, 2], True), ([1, -1, 2], True)):
        partitions = SharePartitions()
        partitions.assign({ONE: OLD})
        routed(partitions, {ONE: leaders[0]})
        found = held(partitions, ONE)
        for leader in leaders[1:]:
            routed(partitions, {ONE: leader})
        found.acks.acknowledge(5, AcknowledgeType.ACCEPT, ignored)
        assert (found.acks.take(0.0, plain=True) is None) is is_doubted


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    partitions = SharePartitions()
    partitions.assign({ONE: OLD})
    found = held(partitions, ONE)
    found.acks.acknowledge(5, AcknowledgeType.RELEASE, ignored)
    partitions.assign({ONE: NEW})
    assert [one.result for one in partitions.ended] == [Acknowledged.NOT_HELD]
    now = partitions.get(ONE)
    assert now is not None
    assert (now.place, now.acks.holds) == ((NEW, 0), False)


def test_a_leader_that_a_broker_names_counts_for_a_while() -> None:
    """Metadata may be older. A broker that names none changes nothing."""
    partitions = SharePartitions()
    partitions.assign({ONE: OLD})
    found = partitions.get(ONE)
    assert found is not None
    found.named_leader(2, 10.0)
    assert routed(partitions, {ONE: 1}, 11.0) == {2: [0]}
    assert routed(partitions, {ONE: 1}, 15.0) == {1: [0]}
    found.named_leader(-1, 16.0)
    assert routed(partitions, {ONE: 1}, 16.0) == {1: [0]}
