"""An Apache Kafka that requires logins and permissions, creates topics automatically, and accepts only short
metadata."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
)

from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import CommitFault, Committed
from aioparallel.records.errors import AuthenticationFailed, ClientError, NotAuthorized
from aioparallel.records.record import TopicPartition
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_member import Member, consumer_of, unique
from tests.support.clusters.strict_broker import allow, login
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real


@pytest_asyncio.fixture
async def members(strict: LocalKafka) -> AsyncIterator[list[Member]]:
    """Two members, of admin and of alice, which are stopped at the end."""
    made = [member(strict, "admin"), member(strict, "alice")]
    yield made
    await asyncio.gather(*(one.client.stop(5.0) for one in made))


def member(strict: LocalKafka, user: str, **options: float) -> Member:
    """A member of its own group, not started."""
    return Member(
        AiokafkaClient(
            strict.bootstrap_servers,
            unique("group"),
            session_timeout=options.get("session_timeout", 5.0),
            heartbeat_interval=0.3,
            client_options=login(user),
        )
    )


async def test_a_wrong_password_is_reported_at_once(strict: LocalKafka, caplog: pytest.LogCaptureFixture) -> None:
    """A retry would not help. No message contains the password."""
    caplog.set_level(logging.DEBUG)
    client, began = (
        AiokafkaClient(strict.bootstrap_servers, "group", client_options=login("alice", "wrong-secret")),
        time.monotonic(),
    )
    with pytest.raises(AuthenticationFailed, match=strict.bootstrap_servers) as failure:
        await client.start(60.0)
    assert time.monotonic() - began < SLACK
    assert "wrong-secret" not in str(failure.value) + caplog.text


async def test_a_topic_without_permission_does_not_exist(members: list[Member], admin: Admin) -> None:
    """It is missing from the result, is not created, and is no error."""
    topic = unique("topic")
    await admin.create_topic(topic, 2)
    boss, alice = members
    await asyncio.gather(boss.client.start(5.0), alice.client.start(5.0))
    await until_seen(boss, topic)
    assert await alice.client.partitions([topic], 5.0) == set()


async def until_seen(one: Member, topic: str) -> None:
    """Wait until the topic is known to the broker's metadata."""
    async with asyncio.timeout(120):
        while not await one.client.partitions([topic], 5.0):
            await asyncio.sleep(0.02)


async def test_a_group_that_is_refused_comes_out_of_fetch(
    strict: LocalKafka, members: list[Member], admin: Admin
) -> None:
    """The join fails in the background. The waiting fetch raises an error with the group's name."""
    topic = unique("topic")
    await admin.create_topic(topic, 1)
    allow(strict, ResourceType.TOPIC, topic, AclOperation.ALL)
    alice = members[1]
    await alice.client.start(5.0)
    alice.client.subscribe({topic}, alice)
    with pytest.raises(NotAuthorized, match="group 'group-"):
        async with asyncio.timeout(120):
            await alice.client.fetch({})
    with pytest.raises(NotAuthorized, match="group 'group-"):
        await alice.client.committed([TopicPartition(topic, 0)], 5.0)
    refused = {TopicPartition(topic, 0): Committed(1, "")}
    assert await alice.client.commit(refused, alice.generation, 5.0) == dict.fromkeys(refused, CommitFault.REFUSED)


async def test_a_topic_that_may_not_be_read_comes_out_of_fetch(
    strict: LocalKafka, members: list[Member], admin: Admin
) -> None:
    """With the permission to describe it is assigned. Reading raises an error with its name, and committing is refused
    as well."""
    topic, alice = unique("topic"), members[1]
    await admin.create_topic(topic, 1)
    allow(strict, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    allow(strict, ResourceType.GROUP, alice.client._settings.group_id, AclOperation.ALL)
    await alice.join(topic)
    alice.read_from(0)
    with pytest.raises(NotAuthorized, match=f"topic '{topic}'"):
        async with asyncio.timeout(120):
            await alice.client.fetch(dict.fromkeys(alice.held, 1))
    offsets = dict.fromkeys(alice.held, Committed(1, ""))
    assert await alice.client.commit(offsets, alice.generation, 5.0) == dict.fromkeys(offsets, CommitFault.REFUSED)


async def test_nothing_creates_a_topic(members: list[Member], admin: Admin) -> None:
    """Neither a request for its partitions nor a subscription creates it. A topic that is deleted under a member stays
    deleted."""
    topic, missing, boss = unique("topic"), unique("missing"), members[0]
    await admin.create_topic(topic, 1)
    await boss.client.start(5.0)
    await until_seen(boss, topic)
    assert await boss.client.partitions([missing], 5.0) == set()
    assert await boss.client.partitions(re.compile("missing.*"), 5.0) == set()
    boss.client.subscribe({topic, missing}, boss)
    await until(lambda: boss.held, what="the assignment")
    boss.read_from(0)
    fetch = asyncio.create_task(boss.client.fetch(dict.fromkeys(boss.held, 1)))
    await admin.delete_topics(topic)
    await until(lambda: boss.count("assigned") > 1 and not boss.held, what="the loss of the deleted topic")
    for _ in range(3):
        await consumer_of(boss.client)._client.force_metadata_update()
    assert {topic, missing}.isdisjoint(await admin.topics())
    boss.client.wake()
    assert await fetch == []


async def test_the_limit_of_this_broker_applies_to_each_partition(members: list[Member], admin: Admin) -> None:
    """Metadata up to ``offset.metadata.max.bytes`` is accepted in the same request in which longer ones are refused."""
    topic, boss = unique("topic"), members[0]
    await admin.create_topic(topic, 2)
    await boss.client.start(5.0)
    await until_seen(boss, topic)
    boss.client.subscribe({topic}, boss)
    await until(lambda: len(boss.held) == 2, what="the assignment")
    fits, does_not = sorted(boss.held)
    offsets = {fits: Committed(1, "\u8000" * 10), does_not: Committed(1, "x" * 11)}
    results = await boss.client.commit(offsets, boss.generation, 5.0)
    assert results == {fits: None, does_not: CommitFault.METADATA_TOO_LARGE}
    assert await boss.client.committed(boss.held, 5.0) == {fits: Committed(1, "\u8000" * 10)}


async def test_a_session_timeout_the_broker_refuses_is_explained(strict: LocalKafka, admin: Admin) -> None:
    """The message names the option and the broker's limits."""
    topic = unique("topic")
    await admin.create_topic(topic, 1)
    short = member(strict, "admin", session_timeout=0.5)
    await short.client.start(5.0)
    try:
        await until_seen(short, topic)
        short.client.subscribe({topic}, short)
        with pytest.raises(ClientError, match=r"refuses session_timeout: keep it between its group\.min"):
            async with asyncio.timeout(120):
                await short.client.fetch({})
    finally:
        await short.client.stop(5.0)
