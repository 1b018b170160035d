"""Patterns and lists of topics that match what the consumer itself writes to."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from aioparallel import ConfigurationError, Deduplicate, FailurePolicy, Record, RetryPolicy, State
from aioparallel.delivery.topics_read import topics_read
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import GROUP, consumer_of
from tests.support.waiting import until

ONCE = RetryPolicy(max_attempts=1)
OWN = {"orders.dlq": "FailurePolicy dead_letter"}


async def fails(record: Record) -> None:
    raise ValueError("poison")


def broker_of(*topics: str) -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in topics:
        broker.create_topic(topic)
    return broker


@pytest.mark.parametrize("retry_topics", [{}, {"orders.retry": 0.01}])
async def test_dead_letters_are_not_read_by_a_pattern(
    retry_topics: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """Ten records are ten dead letters, however long it goes on."""
    broker = broker_of("orders.new", "orders.dlq", "orders.retry")
    for number in range(10):
        broker.append("orders.new", b"%d" % number, key=b"%d" % number)
    failures = FailurePolicy(retry=ONCE, dead_letter="orders.dlq", retry_topics=retry_topics)
    consumer = consumer_of(broker, re.compile(r"orders\..*"), failures=failures)
    with caplog.at_level(logging.INFO, "aioparallel"):
        async with asyncio.timeout(60), consumer:
            task = asyncio.create_task(consumer.run(fails))
            await until(lambda: len(broker.records("orders.dlq")) == 10)
            assert {one.topic for one in consumer.stats().partitions} == {"orders.new", "orders.retry"}
            consumer.stop()
            await task
    assert len(broker.records("orders.dlq")) == 10
    (told,) = [one for one in caplog.records if getattr(one, "action", "") == "own_topic_left_out"]
    assert "orders.dlq" in told.getMessage()


@pytest.mark.parametrize(
    ("options", "topic"),
    [
        ({"failures": FailurePolicy(retry=ONCE, dead_letter="dead")}, "dead"),
        ({"deduplicate": Deduplicate("seen")}, "seen"),
        ({"state": State(initial=0, apply=lambda a, _: a, dump=lambda _: b"", load=len)}, f"{GROUP}-state"),
        ({"state": State(initial=0, apply=lambda a, _: a, dump=lambda _: b"", load=len)}, f"{GROUP}-snapshots"),
    ],
)
async def test_each_topic_of_its_own(options: dict[str, Any], topic: str) -> None:
    """A list that names it is refused; a pattern that matches all topics does not read it."""
    broker = broker_of("t", topic)
    with pytest.raises(ConfigurationError, match=f"='{topic}': is one of the topics that are read"):
        consumer_of(broker, ["t", topic], **options)
    consumer = consumer_of(broker, re.compile(".*"), **options)
    read = consumer._topics
    assert isinstance(read, re.Pattern)
    assert read.fullmatch("t")
    assert not read.fullmatch(topic)
    assert read.fullmatch(f"{topic}-2")


@pytest.mark.parametrize(
    ("pattern", "flags", "matches", "others"),
    [
        (r"orders\..*", 0, ["orders.new", "orders.dlq2", "orders.r+1"], ["orders.dlq", "orders", "xorders.new", "r+2"]),
        (r"(?i)ORDERS\..*", 0, ["orders.new", "Orders.DLQ", "orders.r+1"], ["orders.dlq"]),
        ("orders  # all\n\\. .* # of them", re.VERBOSE, ["orders.new", "orders.r+1"], ["orders.dlq"]),
        (r"a|orders\.dlq|b", 0, ["a", "b", "orders.r+1"], ["orders.dlq", "ab"]),
        (r"(?P<name>o)rders\.(?P=name)", 0, ["orders.o"], ["orders.dlq", "orders.p"]),
        (r"(?i)(?s)(?#all)orders\..*", 0, ["ORDERS.new", "orders.r+1"], ["orders.dlq"]),
    ],
)
def test_patterns(pattern: str, flags: int, matches: list[str], others: list[str]) -> None:
    """Whatever they are made of; names of own topics are meant to the letter, those of retry topics too."""
    read = topics_read(re.compile(pattern, flags), OWN, {"orders.r+1": 1.0})
    assert isinstance(read, re.Pattern)
    assert [topic for topic in matches if not read.fullmatch(topic)] == []
    assert [topic for topic in others if read.fullmatch(topic)] == []


def test_what_matches_nothing_of_its_own_stays_as_it_is() -> None:
    """The pattern that users gave is what they see."""
    given = re.compile("clicks.*")
    assert topics_read(given, OWN, {}) is given
    assert topics_read(("a", "r"), OWN, {"r": 1.0, "s": 2.0}) == ("a", "r", "s")


@pytest.mark.parametrize("retry_topics", [{}, {"later": 0.01}])
async def test_a_dead_letter_that_is_read_by_its_own_group(
    retry_topics: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """It was written while the topic had another name in the options: it stays where it is."""
    broker = broker_of("t", "dead", "dead.new", "later")
    for number in range(3):
        broker.append("t", b"%d" % number, key=b"%d" % number)
    old = FailurePolicy(retry=ONCE, dead_letter="dead")
    async with asyncio.timeout(60), consumer_of(broker, until="end", failures=old) as consumer:
        await consumer.run(fails)
    assert len(broker.records("dead")) == 3
    new = FailurePolicy(retry=ONCE, dead_letter="dead.new", retry_topics=retry_topics)
    async with asyncio.timeout(60), consumer_of(broker, ["t", "dead"], until="end", failures=new) as consumer:
        await consumer.run(fails)
        assert consumer.stats().dead_lettered == 3
    assert broker.records("dead.new") == broker.records("later") == []
    told = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "letter_of_a_letter"]
    assert len(told) == 3
    assert "dead-0 offset" in told[0]


async def test_a_dead_letter_of_another_group() -> None:
    """Is a record like any other."""
    broker = broker_of("t", "dead", "dead.new")
    broker.append("t", b"0", key=b"0")
    old = FailurePolicy(retry=ONCE, dead_letter="dead")
    async with asyncio.timeout(60), consumer_of(broker, until="end", failures=old) as consumer:
        await consumer.run(fails)
    (letter,) = broker.records("dead")
    headers = tuple((name, b"others" if name == "aioparallel.group" else value) for name, value in letter.headers)
    broker.append("dead", letter.value, key=letter.key, headers=headers)
    new = FailurePolicy(retry=ONCE, dead_letter="dead.new")
    async with asyncio.timeout(60), consumer_of(broker, "dead", until="end", failures=new) as consumer:
        await consumer.run(fails)
    assert len(broker.records("dead.new")) == 1
