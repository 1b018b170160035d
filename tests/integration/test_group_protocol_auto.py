"""``group_protocol="auto"``: the new protocol where brokers and group may have it, else the classic one."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.clients.aiokafka import AiokafkaClient, consumer_membership
from aioparallel.clients.aiokafka.group_node import GroupNode
from aioparallel.clients.messages.consumer_groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupDescribeRequest,
)
from aioparallel.records.errors import ClientError, ConfigurationError
from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers.broker import Broker
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from tests.support.clusters.member import Member
from tests.support.kafka.asking import asking
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

DEADLINE = 60.0


@asynccontextmanager
async def members(
    broker: Broker,
    group: str,
    protocols: Collection[str],
    topics: Collection[str] | re.Pattern[str],
    *,
    metadata_max_age_ms: int = 500,
) -> AsyncIterator[list[Member]]:
    """One member after the other, stopped at the end."""
    made: list[Member] = []
    try:
        for protocol in protocols:
            client = AiokafkaClient(
                broker.bootstrap_servers,
                group,
                group_protocol=protocol,  # type: ignore[arg-type]
                client_options={"metadata_max_age_ms": metadata_max_age_ms},
            )
            made.append(Member(client, DEADLINE))
            await client.start(DEADLINE)
            client.subscribe(topics, made[-1])
            await until(lambda: made[-1].held, DEADLINE, "partitions")
        yield made
    finally:
        for one in made:
            await one.client.stop(10.0)


async def nothing(record: Record) -> None:
    """A handler."""


async def is_new(broker: Broker, group: str) -> bool:
    """Whether the group is one of the new protocol."""
    async with asking(broker.bootstrap_servers) as asked:
        request = ConsumerGroupDescribeRequest(group_ids=(group,))
        (found,) = (await asked.coordinate(group, CONSUMER_GROUP_DESCRIBE, request)).groups
    return found.error_code == 0


@pytest.mark.real
async def test_new_where_the_brokers_have_it(local_kafka: LocalKafka) -> None:
    """Kafka 4.3 has it."""
    await local_kafka.create_topic("auto-new", 4)
    async with members(local_kafka, "auto-new", ["auto"], ["auto-new"]) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        assert await is_new(local_kafka, "auto-new")


async def test_the_embedded_broker_has_it(embedded_broker: EmbeddedBroker) -> None:
    """With several members, which it does not share partitions among in the classic protocol."""
    await embedded_broker.create_topic("auto-embedded", 4)
    async with members(embedded_broker, "auto-embedded", ["auto", "consumer"], ["auto-embedded"]) as both:
        await until(lambda: [len(one.held) for one in both] == [2, 2], DEADLINE, "two partitions each")


async def test_leaves_although_the_coordinator_is_slow(
    embedded_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions would wait for its session, half a minute or more, and nobody would read them."""
    await embedded_broker.create_topic("auto-slow", 4)
    ask = GroupNode.ask

    async def slow(node: GroupNode, api: Any, request: Any) -> Any:
        if request.member_epoch < 0:
            await asyncio.sleep(2.0)
        return await ask(node, api, request)

    monkeypatch.setattr(GroupNode, "ask", slow)
    async with members(embedded_broker, "auto-slow", ["auto"], ["auto-slow"]) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        await one.client.stop(5.0)
        async with members(embedded_broker, "auto-slow", ["auto"], ["auto-slow"]) as (other,):
            await until(lambda: len(other.held) == 4, 15.0)


def refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all brokers are as those before Kafka 4.0."""
    monkeypatch.setattr(consumer_membership, "CONSUMER_GROUP_HEARTBEAT", replace(CONSUMER_GROUP_HEARTBEAT, least=99))


@pytest.fixture
def without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All brokers are as those before Kafka 4.0."""
    refuse_it(monkeypatch)


@pytest.mark.usefixtures("without_it")
async def test_consumer_where_they_do_not(embedded_broker: EmbeddedBroker) -> None:
    """It is asked for, so its absence is an error that says what to do."""
    topic = "auto-missing"
    await embedded_broker.create_topic(topic, 1)
    servers = embedded_broker.bootstrap_servers
    async with ParallelConsumer(topic, group_id=topic, bootstrap_servers=servers, group_protocol="consumer") as one:
        with pytest.raises(ClientError, match=r"Kafka 4\.0 or later.*classic"):
            await one.run(nothing)


@pytest.mark.usefixtures("without_it")
@pytest.mark.parametrize("by_pattern", [False, True])
async def test_classic_where_they_do_not(embedded_broker: EmbeddedBroker, by_pattern: bool) -> None:
    """Joins with the classic protocol, by names and by a pattern."""
    topic = f"auto-old-{by_pattern}"
    await embedded_broker.create_topic(topic, 4)
    topics = re.compile(re.escape(topic)) if by_pattern else [topic]
    async with members(embedded_broker, f"{topic}-group", ["auto"], topics) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        assert [event.kind for event in one.events] == ["assigned"]


@pytest.mark.usefixtures("without_it")
async def test_a_pattern_matches_at_once(embedded_broker: EmbeddedBroker) -> None:
    """Not at the next regular metadata update, which is minutes away."""
    await embedded_broker.create_topic("auto-pattern-1", 4)
    topics = re.compile("auto-pattern-.")
    async with members(embedded_broker, "auto-pattern", ["auto"], topics, metadata_max_age_ms=300_000) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)


async def test_partitions_that_come_and_go_are_named(
    embedded_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, as ranges."""
    await embedded_broker.create_topic("auto-named", 4)
    with caplog.at_level(logging.INFO):
        async with members(embedded_broker, "auto-named", ["auto", "auto"], ["auto-named"]) as (one, other):
            await until(lambda: len(one.held) == len(other.held) == 2, DEADLINE)
    said = [record.message.partition(", in epoch")[0] for record in caplog.records if hasattr(record, "count")]
    assert said[0] == "Group auto-named assigns auto-named 0-3 to this member"
    assert said[1].startswith("Group auto-named takes auto-named ")
    assert said[2] == said[1].replace(" takes ", " assigns ").replace(" from ", " to ")


async def test_the_option_that_chooses_the_classic_protocol_is_named(
    embedded_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, by whoever has no client of its own."""
    await embedded_broker.create_topic("auto-option")
    with caplog.at_level(logging.INFO):
        for times in ({}, {"session_timeout": 10}, {"session_timeout": 10, "heartbeat_interval": 1}):
            async with ParallelConsumer(
                "auto-option",
                group_id="auto-option",
                bootstrap_servers=embedded_broker.bootstrap_servers,
                **times,  # type: ignore[arg-type]
            ):
                pass
    said = [record.message for record in caplog.records if getattr(record, "action", "") == "classic_protocol"]
    assert said == [
        "Group auto-option: the classic protocol is used: session_timeout is given",
        "Group auto-option: the classic protocol is used: session_timeout and heartbeat_interval are given",
    ]


async def test_a_pattern_with_an_assignor_of_the_brokers_is_refused(embedded_broker: EmbeddedBroker) -> None:
    """The classic protocol, which reads the pattern, has no such assignor."""
    servers = embedded_broker.bootstrap_servers
    client = AiokafkaClient(servers, "auto-assignor", group_protocol="auto", group_remote_assignor="range")
    await client.start(DEADLINE)
    try:
        with pytest.raises(ConfigurationError, match="group_remote_assignor='range': needs group_protocol"):
            client.subscribe(re.compile("auto-.*"), Member(client, DEADLINE))
    finally:
        await client.stop(10.0)


async def test_partitions_are_lost_when_the_brokers_refuse_it_later(
    embedded_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a feature is downgraded. The classic member begins with nothing: it may get other partitions, and must
    not commit what it does not have."""
    await embedded_broker.create_topic("auto-refused", 4)
    async with members(embedded_broker, "auto-refused", ["auto"], ["auto-refused"]) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        refuse_it(monkeypatch)
        await until(lambda: len(one.heard("assigned")) == 2, DEADLINE)
        assert [event.kind for event in one.events] == ["assigned", "lost", "assigned"]
        assert all(len(event.partitions) == 4 for event in one.events)


@pytest.mark.usefixtures("without_it")
@pytest.mark.parametrize("number", [1, 500])
async def test_a_whole_consumer_falls_back(embedded_broker: EmbeddedBroker, number: int) -> None:
    """Each record is handled once and committed."""
    topic = f"auto-whole-{number}"
    await embedded_broker.create_topic(topic, 3)
    fill(embedded_broker.bootstrap_servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(number)])
    seen: list[Record] = []

    async def handle(record: Record) -> None:
        seen.append(record)

    for _ in range(2):
        async with ParallelConsumer(
            topic,
            group_id=topic,
            bootstrap_servers=embedded_broker.bootstrap_servers,
            group_protocol="auto",
            group_remote_assignor="uniform",
            session_timeout=2.0,  # how long the second one waits for the first one, in the embedded broker
            heartbeat_interval=0.5,
            until="end",
        ) as consumer:
            await consumer.run(handle)
    assert sorted(int(record.value or b"") for record in seen) == list(range(number))


async def test_brokers_of_an_older_version_take_over(
    embedded_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the member had is lost, and it is assigned to the classic member then."""
    topic = "auto-downgrade"
    await embedded_broker.create_topic(topic, 4)
    async with members(embedded_broker, f"{topic}-group", ["auto"], [topic]) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        older = replace(CONSUMER_GROUP_HEARTBEAT, least=99)
        monkeypatch.setattr(consumer_membership, "CONSUMER_GROUP_HEARTBEAT", older)
        await until(lambda: len(one.events) >= 3 and len(one.held) == 4, DEADLINE, lambda: str(one.events))
        assert [event.kind for event in one.events] == ["assigned", "lost", "assigned"]


@pytest.fixture(scope="module")
def no_migration() -> Iterator[LocalKafka]:
    """A broker that does not move running groups to another protocol."""
    with LocalKafka(compile_once=True, server_properties={"group.consumer.migration.policy": "disabled"}) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.real
async def test_classic_beside_members_that_must_stay_so(no_migration: LocalKafka) -> None:
    """A running classic group that may not be moved has another classic member then. An empty group is moved."""
    await no_migration.create_topic("auto-stay", 4)
    async with members(no_migration, "auto-stay", ["classic", "auto"], ["auto-stay"]) as both:
        await until(lambda: [len(one.held) for one in both] == [2, 2], DEADLINE, "two partitions each")
        assert not await is_new(no_migration, "auto-stay")
    async with members(no_migration, "auto-stay", ["auto"], ["auto-stay"]) as (one,):
        await until(lambda: len(one.held) == 4, DEADLINE)
        assert await is_new(no_migration, "auto-stay")


@pytest.mark.real
async def test_a_running_group_moves_and_moves_back(local_kafka: LocalKafka) -> None:
    """With the brokers' default policy, the first "auto" member moves it, and the last one's end moves it back."""
    await local_kafka.create_topic("auto-moves", 4)
    async with members(local_kafka, "auto-moves", ["classic"], ["auto-moves"]) as (old,):
        async with members(local_kafka, "auto-moves", ["auto"], ["auto-moves"]) as (new,):
            await until(lambda: len(old.held) == len(new.held) == 2, DEADLINE, "two partitions each")
            assert await is_new(local_kafka, "auto-moves")
        await until(lambda: len(old.held) == 4, DEADLINE, "all partitions")
        assert not await is_new(local_kafka, "auto-moves")
