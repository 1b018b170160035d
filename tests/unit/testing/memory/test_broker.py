"""The broker's topics, transactions and damages."""

from __future__ import annotations

import re

import pytest

from aioparallel.group.client import Committed, Generation
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, InMemoryBroker
from aioparallel.testing.memory.refused import Refused

TOOL = Generation(-1, "")
"""What a tool commits with that is no member."""
P0 = TopicPartition("t", 0)


def test_topics_by_name_and_pattern(broker: InMemoryBroker) -> None:
    """Topics are found by name and by whole-name pattern; missing ones are left out and not created."""
    broker.create_topic("other")
    assert broker.partitions_of(["t", "missing"]) == {P0, TopicPartition("t", 1)}
    assert broker.partitions_of(re.compile("o.*")) == {TopicPartition("other", 0)}
    assert broker.partitions_of(re.compile("othe")) == set()
    assert broker.partitions_of(["missing"]) == set()
    assert broker.log(TopicPartition("t", 2)) is broker.log(TopicPartition("missing", 0)) is None


def test_keys_stay_in_a_partition(broker: InMemoryBroker) -> None:
    """All records of a key go to one partition; records without key go round."""
    assert len({broker.append("t", b"", key=b"k")[0] for _ in range(5)}) == 1
    assert {broker.append("t", b"")[0].partition for _ in range(2)} == {0, 1}


def test_records_shows_what_was_produced(broker: InMemoryBroker) -> None:
    """records() lists what a read_committed consumer would see."""
    aborted, committed = broker.begin_transaction(), broker.begin_transaction()
    broker.append("t", b"no", partition=0, transaction=aborted)
    broker.append("t", b"yes", key=b"k", headers=(("h", b"1"),), timestamp=5, partition=1, transaction=committed)
    broker.end_transaction(aborted, commit=False)
    assert broker.records("t") == []
    broker.end_transaction(committed, commit=True)
    [record] = broker.records("t")
    assert (record.key, record.value, record.headers, record.timestamp) == (b"k", b"yes", (("h", b"1"),), 5)
    assert (record.topic_partition, record.offset) == (TopicPartition("t", 1), 0)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("name", lambda broker: broker.create_topic("t")),
        ("total", lambda broker: broker.create_topic("new", 0)),
        ("total", lambda broker: broker.add_partitions("t", 1)),
        ("topic", lambda broker: broker.append("missing", b"")),
        ("partition", lambda broker: broker.append("t", b"", partition=2)),
        ("partition", lambda broker: broker.delete_before(TopicPartition("t", 9), 1)),
        ("metadata_limit", lambda _: InMemoryBroker(metadata_limit=-1)),
    ],
)
def test_wrong_use_is_refused(broker: InMemoryBroker, option: str, wrong: object) -> None:
    """What cannot be meant raises a ConfigurationError that names it."""
    assert callable(wrong)
    with pytest.raises(ConfigurationError) as raised:
        wrong(broker)
    assert raised.value.option == option


def test_an_ended_transaction_takes_no_more(broker: InMemoryBroker) -> None:
    """Appending under a transaction that has ended is refused."""
    transaction = broker.begin_transaction()
    broker.end_transaction(transaction, commit=True)
    with pytest.raises(ConfigurationError, match="transaction"):
        broker.append("t", b"", transaction=transaction)


def test_commits_are_judged_by_partition(broker: InMemoryBroker) -> None:
    """Unknown and denied topics are refused one by one; the rest of the request is stored."""
    broker.create_topic("secret")
    broker.deny_topic("secret")
    asked = {p: Committed(1, "") for p in (P0, TopicPartition("t", 9), TopicPartition("secret", 0))}
    assert broker.commit("g", asked, TOOL, now=0.0) == {
        P0: None,
        TopicPartition("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("secret", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert broker.group("g").offsets == {P0: Committed(1, "")}


def test_a_denied_group_and_a_missing_coordinator_refuse(broker: InMemoryBroker) -> None:
    """Requests about a denied group, or while the coordinator is away, are refused as a whole."""
    broker.is_coordinator_available = False
    with pytest.raises(Refused) as raised:
        broker.commit("g", {P0: Committed(1, "")}, TOOL, now=0.0)
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.is_coordinator_available = True
    broker.deny_group("g")
    with pytest.raises(Refused) as raised:
        broker.commit("g", {P0: Committed(1, "")}, TOOL, now=0.0)
    assert raised.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert broker.group("g").offsets == {}


def test_deleting_a_topic_forgets_its_commits(broker: InMemoryBroker) -> None:
    """A deleted topic is gone with what groups had committed for it; a new one of its name begins at 0."""
    broker.append("t", b"", partition=0)
    broker.commit("g", {P0: Committed(1, "")}, TOOL, now=0.0)
    broker.delete_topic("t")
    assert broker.partitions_of(["t"]) == set()
    assert broker.group("g").offsets == {}
    broker.create_topic("t")
    assert broker.append("t", b"") == (P0, 0)


def test_a_lower_metadata_limit(broker: InMemoryBroker) -> None:
    """The limit counts UTF-16 characters: an astral character counts twice."""
    broker = InMemoryBroker(metadata_limit=3)
    broker.create_topic("t")
    for text, fits in [
        ("abc", True),
        ("abcd", False),
        ("\u8000" * 3, True),
        ("a\U0001f600", True),
        ("ab\U0001f600", False),
    ]:
        [code] = broker.commit("g", {P0: Committed(1, text)}, TOOL, now=0.0).values()
        assert (code is None) is fits


def test_a_huge_commit_fails_as_a_whole() -> None:
    """One commit is one batch in the offsets topic: above about 1 MB nothing of it is stored."""
    broker = InMemoryBroker()
    broker.create_topic("t", 100)
    text = "\u8000" * 4096
    asked = {TopicPartition("t", number): Committed(1, text) for number in range(100)}
    with pytest.raises(Refused) as raised:
        broker.commit("g", asked, TOOL, now=0.0)
    assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert broker.group("g").offsets == {}
    part = dict(list(asked.items())[:80])
    assert broker.commit("g", part, TOOL, now=0.0) == dict.fromkeys(part)
