"""AiokafkaProducer on an Apache Kafka that requires logins and permissions, and creates topics automatically."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
import pytest_asyncio
from confluent_kafka.admin import AclOperation, ResourceType

from aioparallel.clients import AiokafkaProducer
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import AuthenticationFailed, ProduceFailed
from aioparallel.records.record import Outgoing
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_member import unique
from tests.support.clusters.sender import Sender
from tests.support.clusters.strict_broker import allow, login
from tests.support.waiting import SLACK

pytestmark = pytest.mark.real


class Login(Protocol):
    """A new producer, logged in with the consumer's client options."""

    def __call__(self, user: str, password: str | None = None, timeout: float = 20.0) -> AiokafkaProducer: ...


@pytest_asyncio.fixture
async def producer_of(strict: LocalKafka) -> AsyncIterator[Login]:
    """Makes producers, which are stopped at the end."""
    made: list[AiokafkaProducer] = []

    def make(user: str, password: str | None = None, timeout: float = 20.0) -> AiokafkaProducer:
        options = login(user, password)
        made.append(
            AiokafkaProducer(
                strict.bootstrap_servers, delivery_timeout=timeout, consumer_options=options, producer_options={}
            )
        )
        return made[-1]

    yield make
    for producer in made:
        await producer.stop(0.5)


async def test_a_wrong_password(producer_of: Login) -> None:
    """start() raises AuthenticationFailed at once. Outputs wait until delivery_timeout, because the password may be
    changing; problems() reports it."""
    began = time.monotonic()
    producer = producer_of("alice", "wrong", 2.0)
    with pytest.raises(AuthenticationFailed):
        await producer.start(60.0)
    failure = await Sender(producer).failed(Outgoing(unique("topic"), b"value"))
    assert failure.passing
    assert "Invalid username or password" in failure.reason
    assert time.monotonic() - began < SLACK
    assert ["Invalid username or password" in problem.message for problem in producer.problems()] == [True]


async def test_permissions_are_named(strict: LocalKafka, admin: Admin, producer_of: Login) -> None:
    """Unauthorised outputs fail permanently, and the error names the permission. Authorised ones are written."""
    writable, visible, hidden = (unique("topic") for _ in range(3))
    for name in (writable, visible, hidden):
        await admin.create_topic(name)
    producer = producer_of("alice")
    sender = Sender(producer)
    failure = await sender.failed(Outgoing(writable, b"value"))
    assert not failure.passing
    # The first time alice has no permission at all; it is the second loop's turn when she has some already.
    assert re.search("not authorised.*(IDEMPOTENT_WRITE|WRITE and DESCRIBE)", failure.reason)
    await asyncio.to_thread(allow, strict, ResourceType.TOPIC, writable, AclOperation.WRITE)
    await asyncio.to_thread(allow, strict, ResourceType.TOPIC, visible, AclOperation.DESCRIBE)
    async with asyncio.timeout(120):
        # The broker takes a moment to hear of permissions.
        while isinstance(await sender.send(Outgoing(writable, b"value")), ProduceFailed):
            await asyncio.sleep(0.05)
    waiting = [sender.send(Outgoing(name, b"value")) for name in (visible, hidden)]
    await sender.written(Outgoing(writable, b"value"))
    for future in waiting:
        refused = await future
        assert isinstance(refused, ProduceFailed)
        assert "WRITE" in str(refused)
        assert "not authorised" in str(refused)


async def test_no_topic_is_created(admin: Admin, producer_of: Login) -> None:
    """Requests tell a broker that creates topics automatically not to."""
    topic = unique("topic")
    await admin.create_topic(topic, 1)
    producer = producer_of("admin", timeout=4.0)  # so long is the topic waited for
    sender = Sender(producer)
    missing = sender.send(Outgoing(f"{topic}-missing", b"value"))
    await sender.written(Outgoing(topic, b"value"))
    async with asyncio.timeout(120):
        assert "topic not found" in str(await missing)
    assert f"{topic}-missing" not in await admin.topics()
