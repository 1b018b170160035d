"""Members of share groups where users need permissions, and logins end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.config.security.security import Mechanism
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import NotAuthorized
from aioparallel.testing import LocalKafka
from tests.support.kafka.share_members import ShareMember, configured, new_group, produce
from tests.support.waiting import until

pytestmark = pytest.mark.real


@asynccontextmanager
async def member_as(
    kafka: LocalKafka, user: str, group: str, topic: str, mechanism: Mechanism = "SCRAM-SHA-512"
) -> AsyncIterator[ShareMember]:
    client = AiokafkaShareClient(
        kafka.secured.bootstrap_servers(),
        group,
        client_options=kafka.secured.security("SASL_SSL", user, mechanism).client_options(),
    )
    try:
        await client.start(30)
        member = ShareMember(client)
        client.subscribe([topic], lambda partitions: member.assignments.append(set(partitions)))
        yield member
    finally:
        await client.stop(5)


async def test_permissions(secured_kafka: LocalKafka) -> None:
    """READ on the group and the topic. What is missing is named, and a permission taken away ends the fetch."""
    kafka, secured = secured_kafka, secured_kafka.secured
    topic, group = new_group(), new_group()
    await kafka.create_topic(topic)
    await produce(kafka, topic, 3)
    await configured(kafka.bootstrap_servers, group, {})
    with pytest.raises(NotAuthorized, match=group):
        async with member_as(kafka, "clerk", group, topic):
            raise AssertionError("it has started")
    await asyncio.to_thread(secured.allow, "clerk", "READ", group=group)
    with pytest.raises(NotAuthorized, match=topic):
        async with member_as(kafka, "clerk", group, topic) as member, asyncio.timeout(30):
            await member.client.fetch(10)
    await asyncio.to_thread(secured.allow, "clerk", "READ", topic=topic)
    async with member_as(kafka, "clerk", group, topic) as member:
        some = await member.take(3)
        assert await member.end(some[:1]) == [Acknowledged.DONE]
        fetching = asyncio.create_task(member.client.fetch(10))
        await asyncio.to_thread(secured.forbid, "clerk", "READ", topic=topic)
        with pytest.raises(NotAuthorized, match=topic):
            async with asyncio.timeout(30):
                await fetching


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", ["SCRAM-SHA-512", *(pytest.param(one, marks=pytest.mark.slow) for one in ("PLAIN", "OAUTHBEARER"))]
)
async def test_a_login_that_ends(secured_kafka: LocalKafka, mechanism: Mechanism) -> None:
    """After three seconds here. The member logs in again on the connection of its session, so no lock is lost."""
    topic, group = new_group(), new_group()
    await secured_kafka.create_topic(topic)
    await produce(secured_kafka, topic, 10)
    await configured(secured_kafka.bootstrap_servers, group, {})
    async with member_as(secured_kafka, "me", group, topic, mechanism) as member:
        done: list[int] = []
        results: list[Acknowledged] = []

        def ended(offset: int, result: Acknowledged) -> None:
            results.append(result)
            if result is Acknowledged.DONE:
                done.append(offset)

        async def handle() -> None:
            while True:
                for one in await member.take(1, most=10):
                    offset = one.offset
                    asyncio.get_running_loop().call_later(
                        1.0,
                        lambda one=one, offset=offset: member.client.acknowledge(  # type: ignore[misc]
                            one.partition,
                            offset,
                            AcknowledgeType.ACCEPT,
                            lambda result, _until: ended(offset, result),
                        ),
                    )

        handling = asyncio.create_task(handle())
        for first in range(10, 60, 10):
            await asyncio.sleep(1.5)
            await produce(secured_kafka, topic, 10, first=first)
        await until(lambda: len(set(done)) == 60)
        handling.cancel()
        assert sorted(done) == list(range(60))
        assert set(results) == {Acknowledged.DONE}
