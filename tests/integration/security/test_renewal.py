"""Logins that end, tokens renewed, a password and a certificate changed, all while a consumer runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aioparallel import AuthenticationFailed, Outgoing, ParallelConsumer, Record, Security, Token
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.event_loop.waiting import to_the_end
from aioparallel.testing import LocalKafka
from tests.conftest import PASSWORD
from tests.support.kafka.consuming import consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.real

LOGINS = 9
"""Of one consumer: its three connections, and each of them renewed twice."""


class Numbers:
    """Numbers into a topic for the length of a block; each is to come out of another one, once."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self.kafka, self.topic, self.count = kafka, topic, 0

    async def handle(self, record: Record) -> Outgoing:
        """Pass it on."""
        return Outgoing(f"{self.topic}.out", record.value, record.key)

    def consumer(self, security: Security) -> ParallelConsumer[Any, Any]:
        return ParallelConsumer(
            self.topic,
            bootstrap_servers=self.kafka.secured.bootstrap_servers(
                "SASL_SSL" if security.mechanism is not None else "MUTUAL_SSL"
            ),
            group_id=f"{self.topic}.group",
            security=security,
        )

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        for name in (self.topic, f"{self.topic}.out"):
            await self.kafka.create_topic(name)
        filling = asyncio.create_task(self._fill())
        try:
            yield
        finally:
            filling.cancel()
            await asyncio.wait([filling])

    async def _fill(self) -> None:
        while True:
            number = self.count
            self.count += 1
            message = Message(b"k%d" % (number % 7), b"%d" % number)
            await to_the_end(asyncio.to_thread(self._write, message))
            await asyncio.sleep(0.1)

    def _write(self, message: Message) -> None:
        fill(self.kafka.bootstrap_servers, self.topic, [message])

    async def finish(self, security: Security) -> None:
        """Run the rest; each came out once."""
        async with asyncio.timeout(DEADLINE), self.consumer(security) as last:
            running = asyncio.create_task(last.run(self.handle))
            await until(lambda: running.done() or (last.health().ready and last.stats().lag == 0), what="the rest")
            last.stop()
            await running
        outputs = await read_all(self.kafka.bootstrap_servers, f"{self.topic}.out")
        assert sorted(int(one.value or b"-1") for one in outputs) == list(range(self.count))


async def test_logins_that_end(secured_kafka: LocalKafka, caplog: pytest.LogCaptureFixture) -> None:
    """Connections are left for new ones before, with a new login and where that is wanted a new token: nothing is
    lost, nothing comes twice, no problem, not a line that alarms."""
    secured, asked = secured_kafka.secured, 0
    caplog.set_level(logging.INFO)

    async def token() -> Token:
        nonlocal asked
        asked += 1
        return Token(secured.token("me", 2.5), time.time() + 2.5)

    with_tokens = Security("SASL_SSL", ca_file=secured.authority.ca_file, mechanism="OAUTHBEARER", token=token)
    with_password = secured.security("SASL_SSL", "me")
    kinds = {"ends-password": with_password, "ends-token": with_tokens}

    def logins(security: Security) -> int:
        return sum(
            one.name == "aiokafka.conn" and one.getMessage().endswith(f" via {security.mechanism}")
            for one in caplog.records
        )

    await asyncio.gather(*(_live(Numbers(secured_kafka, name), one, logins) for name, one in kinds.items()))
    assert asked >= 3
    ours = [one for one in caplog.records if one.name.startswith("aioparallel")]
    assert [one.getMessage() for one in ours if one.levelno >= logging.WARNING] == []


async def _live(numbers: Numbers, security: Security, logins: Callable[[Security], int]) -> None:
    consumer = numbers.consumer(security)

    def is_well() -> bool:
        assert consumer.health().ready, consumer.health()
        assert not consumer.health().problems
        return logins(security) >= begun + LOGINS

    async with numbers.flowing(), consuming(consumer, numbers.handle):
        await until(lambda: consumer.health().ready, what=lambda: str(consumer.health()))
        begun = logins(security)
        await until(is_well, what=lambda: f"{logins(security)} logins of {security.mechanism}")
    await numbers.finish(security)


@pytest.mark.slow
async def test_a_password_changed_while_it_runs(secured_kafka: LocalKafka, tmp_path: Path) -> None:
    """At the broker first: logins are refused, health() says by whom and why, and all waits; then in the file: back,
    with nothing lost and nothing twice."""
    secured, file = secured_kafka.secured, tmp_path / "password"
    file.write_text(PASSWORD)
    security = Security(
        "SASL_SSL",
        ca_file=secured.authority.ca_file,
        mechanism="SCRAM-SHA-256",
        username="clerk",
        password_file=file,
    )
    numbers = Numbers(secured_kafka, "password-changes")
    for topic in (numbers.topic, f"{numbers.topic}.out"):
        await asyncio.to_thread(secured.allow, "clerk", "ALL", topic=topic)
    await asyncio.to_thread(secured.allow, "clerk", "ALL", group=f"{numbers.topic}.group")
    consumer = numbers.consumer(security)
    try:
        async with numbers.flowing(), consuming(consumer, numbers.handle):
            await until(lambda: consumer.health().ready, what=lambda: str(consumer.health()))
            await asyncio.to_thread(secured.set_password, "clerk", "another-1705")
            await until(lambda: _refused_login(consumer), what=lambda: str(consumer.health()))
            assert not consumer.health().ready
            assert consumer.health().live
            file.write_text("another-1705")
            await until(
                lambda: consumer.health().ready and consumer.stats().lag == 0, what=lambda: str(consumer.health())
            )
            assert consumer.health().problems == ()
    finally:
        await asyncio.to_thread(secured.set_password, "clerk", PASSWORD)
    await numbers.finish(secured.security("SASL_SSL", "me"))


def _refused_login(consumer: ParallelConsumer[Any, Any]) -> bool:
    said = "invalid credentials with SASL mechanism SCRAM-SHA-256 (user 'clerk')"
    return any(one.kind == "broker_unreachable" and said in one.message for one in consumer.health().problems)


async def test_a_certificate_renewed_while_it_runs(secured_kafka: LocalKafka, tmp_path: Path) -> None:
    """New files are taken at the next connection; wrong ones are a refused login, told as what it is."""
    secured, file = secured_kafka.secured, tmp_path / "me.pem"
    file.write_bytes(secured.authority.issue("ended-me.pem", name="me", ended=True).read_bytes())
    security = Security("SSL", ca_file=secured.authority.ca_file, certificate_file=file)
    servers, options = secured.bootstrap_servers("MUTUAL_SSL"), security.client_options()
    with pytest.raises(AuthenticationFailed, match="does not accept this client's certificate"):
        await Admin(servers, options).__aenter__()
    file.write_bytes(b"nonsense")
    with pytest.raises(AuthenticationFailed, match=r"certificate_file=.*not in PEM format"):
        await Admin(servers, options).__aenter__()
    file.write_bytes(secured.authority.issue("me.pem", name="me").read_bytes())
    async with Admin(servers, options) as admin:
        await admin.topics()
