"""Acknowledgements that wait to be sent: each is answered once, whatever is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.share_acks import Ack, Acks, Lock, as_batches

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def ack(offset: int, kind: AcknowledgeType = ACCEPT, partition: TopicPartition = P0, until: float = 10.0) -> Ack:
    return Ack(partition, offset, kind, None, Lock(until))


def test_ranges_of_a_request() -> None:
    """One type for all of a range, or one for each."""
    acks = [ack(1), ack(2), ack(4), ack(5, RELEASE), ack(9, REJECT)]
    assert as_batches(acks) == (
        AcknowledgementBatch(1, 2, (ACCEPT,)),
        AcknowledgementBatch(4, 5, (ACCEPT, RELEASE)),
        AcknowledgementBatch(9, 9, (REJECT,)),
    )
    assert as_batches([]) == ()


def test_a_renewal_is_replaced() -> None:
    """Wherever it waits; but not while it is under way."""
    acks = Acks()
    renewal, other = ack(3, RENEW), ack(4)
    assert acks.add(renewal) is None
    acks.add(other)
    taken = acks.take()
    accepted = ack(3)
    assert acks.add(accepted) is None, "it is under way"
    assert acks.split(taken[P0]) == [renewal], "it was not carried out"
    second = ack(4, REJECT)
    assert acks.add(second) is other
    assert list(acks) == [accepted, second]


def test_late_ones_are_removed() -> None:
    """Those whose locks have ended."""
    acks = Acks()
    late, early = ack(1, until=1.0), ack(2, until=9.0)
    refused = ack(3, partition=P1, until=1.0)
    acks.put_back([refused])
    acks.add(late)
    acks.add(early)
    assert set(acks.remove_late(5.0)) == {late, refused}
    assert list(acks) == [early]
    assert acks.partitions() == {P0}
    again = ack(4)
    acks.add(again)
    assert acks.withdraw(P0, [3, 4]) == [again], "it was acquired again"
    assert acks.remove([P0, P1]) == [early]
    assert not acks


@given(
    offsets=st.dictionaries(st.integers(0, 40), st.sampled_from([P0, P1]), min_size=1),
    wrong=st.sets(st.integers(0, 40)),
)
def test_wrong_ones_do_not_spoil_others(offsets: dict[int, TopicPartition], wrong: set[int]) -> None:
    """Each request has a partition's acknowledgements in the order of offsets. All that are not wrong are accepted, and
    the wrong ones are refused alone."""
    acks = Acks()
    for offset, partition in offsets.items():
        acks.add(ack(offset, partition=partition))
    accepted: list[int] = []
    refused: list[int] = []
    requests = 0
    while acks:
        requests += 1
        for partition, some in acks.take().items():
            named = [one.offset for one in some]
            assert named == sorted(set(named))
            assert all(one.partition == partition for one in some)
            if not wrong & set(named):
                accepted += named
            elif len(some) == 1:
                refused += named
            else:
                assert acks.split(some) == []
    assert sorted(accepted) == sorted(offsets.keys() - wrong)
    assert sorted(refused) == sorted(offsets.keys() & wrong)
    assert requests <= 1 + 7 * len(wrong & offsets.keys()) * 2
