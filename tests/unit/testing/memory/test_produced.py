"""What the broker knows of producers: the rules of Kafka's ProducerAppendInfo (KIP-98, KIP-360)."""

from __future__ import annotations

import pytest

from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory import ErrorCode, InMemoryBroker
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import Refused

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)
LAST = 2**31 - 1
"""The last sequence number; after it comes 0."""


def write(
    broker: InMemoryBroker,
    epoch: int,
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    partition: TopicPartition = P0,
    key: bytes | None = None,
) -> int | ErrorCode:
    """Where the batch stands, or why it does not."""
    records = [Outgoing("t", b"%d.%d" % (epoch, sequence + index), key) for index in range(count)]
    try:
        return broker.produce(partition, records, size=100 * count, numbers=Numbers(producer_id, epoch, sequence))
    except Refused as refused:
        return refused.code


def held(broker: InMemoryBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("t")]


def test_a_repeated_batch_is_written_once(broker: InMemoryBroker) -> None:
    """The last five batches of a producer are recognised by first and last sequence, and answered with the offset
    that they have; one that is older is out of order (KIP-98)."""
    assert [write(broker, 0, sequence, 2) for sequence in range(0, 12, 2)] == [0, 2, 4, 6, 8, 10]
    assert [write(broker, 0, sequence, 2) for sequence in range(2, 12, 2)] == [2, 4, 6, 8, 10]
    assert write(broker, 0, 0, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(held(broker)) == 12


def test_a_part_of_a_batch_is_no_repetition(broker: InMemoryBroker) -> None:
    """Another number of records, or another first sequence, is not the same batch: it is out of order."""
    assert write(broker, 0, 0, 4) == 0
    for first, count in ((0, 3), (1, 3), (0, 5), (3, 1)):
        assert write(broker, 0, first, count) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(broker, 0, 4, 3) == 4


def test_sequences_go_up_by_one(broker: InMemoryBroker) -> None:
    """A gap is out of order, and so is an old number; the next number is taken after all (KIP-98)."""
    assert write(broker, 0, 0, 3) == 0
    assert write(broker, 0, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(broker, 0, 3) == 3


def test_sequences_begin_again(broker: InMemoryBroker) -> None:
    """After 2^31 - 1 comes 0, between two batches and within one."""
    assert write(broker, 0, LAST - 1, 2) == 0
    assert write(broker, 0, 0, 2) == 2
    assert write(broker, 1, 0) == 4
    assert write(broker, 0, LAST, 3, producer_id=8) == 5
    assert write(broker, 0, LAST, 3, producer_id=8) == 5
    assert write(broker, 0, 2, producer_id=8) == 8


def test_an_older_epoch_is_fenced(broker: InMemoryBroker) -> None:
    """Once a newer epoch has written, the older one is refused: what it had on its way is not written late, and what
    it had written is not recognised any more (KIP-360)."""
    assert write(broker, 0, 0) == 0
    assert write(broker, 1, 0) == 1
    assert write(broker, 0, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(broker, 0, 0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(broker, 1, 0) == 1
    assert held(broker) == [b"0.0", b"1.0"]


def test_a_newer_epoch_begins_with_0(broker: InMemoryBroker) -> None:
    """With any other number it is out of order, and the older epoch goes on (KIP-360)."""
    assert write(broker, 0, 0) == 0
    assert write(broker, 1, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(broker, 0, 1) == 1
    assert write(broker, 3, 0) == 2


def test_a_batch_of_the_same_numbers_in_a_newer_epoch_is_another_one(broker: InMemoryBroker) -> None:
    """The epoch is part of what a batch is recognised by: nothing of a newer epoch is taken for the older one's."""
    assert write(broker, 0, 0, 2) == 0
    assert write(broker, 1, 0, 2) == 2


def test_a_producer_that_is_not_known_begins_anywhere(broker: InMemoryBroker) -> None:
    """With any epoch and any number, if it has never written or was forgotten: Kafka takes it (KIP-360)."""
    assert write(broker, 4, 17) == 0
    assert write(broker, 4, 19) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    broker.producers.forget()
    assert write(broker, 2, 17) == 1


def test_producers_are_known_by_partition(broker: InMemoryBroker) -> None:
    """Epoch and numbers of a producer in one partition say nothing about another, nor about another producer."""
    assert write(broker, 1, 0) == 0
    assert write(broker, 0, 0, partition=P1) == 0
    assert write(broker, 0, 0, producer_id=8) == 1


def test_what_a_truncated_log_lost_was_never_produced(broker: InMemoryBroker) -> None:
    """An unclean leader election takes the numbers back with the records: the batch that was lost is written again,
    and one after it is out of order."""
    for sequence in range(8):
        write(broker, 0, sequence)
    broker.truncate_tail(P0, 2)
    assert write(broker, 0, 8) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(broker, 0, 1) == 1
    assert write(broker, 0, 2) == 2


def test_a_topic_of_the_same_name_knows_nobody(broker: InMemoryBroker) -> None:
    """What a deleted topic knew of producers and its setting are gone with it."""
    broker.make_compacted("t")
    assert write(broker, 1, 0, key=b"k") == 0
    broker.delete_topic("t")
    broker.create_topic("t")
    assert write(broker, 0, 0) == 0


@pytest.mark.parametrize("reason", ["too large", "no key", "denied"])
def test_a_written_batch_can_be_refused_when_it_comes_again(broker: InMemoryBroker, reason: str) -> None:
    """Permission, size and records are checked before the batch is recognised, as Kafka does: it stands in the log,
    and the answer says that it was refused. The numbers stay used."""
    assert write(broker, 0, 0) == 0
    match reason:
        case "too large":
            broker.max_message_bytes = 99
            code = ErrorCode.MESSAGE_TOO_LARGE
        case "no key":
            broker.make_compacted("t")
            code = ErrorCode.INVALID_RECORD
        case _:
            broker.deny_topic("t")
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert write(broker, 0, 0) is code
    broker.max_message_bytes = None
    broker.make_compacted("t", compacted=False)
    broker.deny_topic("t", denied=False)
    assert write(broker, 0, 0) == 0
    assert held(broker) == [b"0.0"]


def test_a_compacted_topic_takes_no_record_without_a_key(broker: InMemoryBroker) -> None:
    """One of them, and the whole batch is refused; its numbers are free."""
    broker.make_compacted("t")
    mixed = [Outgoing("t", b"1", b"k"), Outgoing("t", b"2")]
    with pytest.raises(Refused) as raised:
        broker.produce(P0, mixed, size=10, numbers=Numbers(7, 0, 0))
    assert raised.value.code is ErrorCode.INVALID_RECORD
    assert write(broker, 0, 0, 2, key=b"k") == 0
