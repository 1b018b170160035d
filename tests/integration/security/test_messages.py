"""What is said when TLS, the login or a right is wrong: what ``docs/security.md`` prints, word for word."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from aioparallel import (
    AuthenticationFailed,
    ClientError,
    FailurePolicy,
    NotAuthorized,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    Security,
    TopicNotFound,
    TopicPartition,
)
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.testing import LocalKafka, Secured
from aioparallel.testing.brokers.certificates import TestAuthority
from tests.conftest import PASSWORD
from tests.support.kafka.consuming import consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

PAGE: Final = (Path(__file__).parents[3] / "docs/security.md").read_text()


def _in_docs(message: str, names: dict[str, str] | None = None) -> None:
    """Whether the page has it, with its names in the place of ours."""
    said = re.sub(r"offset \d", "offset 0", message)
    said = re.sub(r"(127\.0\.0\.1|localhost):\d+", "kafka:9093", said)
    for name, shown in (names or {}).items():
        said = said.replace(name, shown)
    assert f"`{said}`" in PAGE, said


class Fault:
    """A wrong way to connect. ``make``: gives the servers and the security."""

    def __init__(self, make: Callable[[LocalKafka, Path], tuple[str, Security | None]]) -> None:
        self.make = make


def _tls(kafka: LocalKafka, **given: Any) -> Security:
    return Security("SSL", **{"ca_file": kafka.secured.authority.ca_file, **given})


def _login(kafka: LocalKafka, mechanism: str, password: str = "wrong") -> Security:
    ca_file = kafka.secured.authority.ca_file
    return Security("SASL_SSL", ca_file=ca_file, mechanism=mechanism, username="me", password=password)  # type: ignore[arg-type]


def _token(kafka: LocalKafka, *, works: bool) -> Security:
    async def token() -> str:
        if not works:
            raise RuntimeError("nobody home")
        return kafka.secured.token("me", -60)

    return Security("SASL_SSL", ca_file=kafka.secured.authority.ca_file, mechanism="OAUTHBEARER", token=token)


def _at(kafka: LocalKafka, listener: Any) -> str:
    return kafka.secured.bootstrap_servers(listener)


FAULTS: Final[dict[str, Callable[[LocalKafka, Path], tuple[str, Security | None]]]] = {
    "wrong authority": lambda k, d: (_at(k, "SSL"), _tls(k, ca_file=TestAuthority(d).ca_file)),
    "authorities of the system": lambda k, _: (_at(k, "SSL"), Security("SSL")),
    "wrong host": lambda k, _: (_at(k, "SSL").replace("127.0.0.1", "localhost"), _tls(k)),
    "no certificate": lambda k, _: (_at(k, "MUTUAL_SSL"), _tls(k)),
    "certificate of a stranger": lambda k, d: (
        _at(k, "MUTUAL_SSL"),
        _tls(k, certificate_file=TestAuthority(d).issue("me.pem", name="me")),
    ),
    "certificate that has ended": lambda k, _: (
        _at(k, "MUTUAL_SSL"),
        _tls(k, certificate_file=k.secured.authority.issue("ended.pem", name="me", ended=True)),
    ),
    "plain at TLS": lambda k, _: (_at(k, "SSL"), None),
    "plain login at TLS": lambda k, _: (_at(k, "SASL_SSL"), k.secured.security("SASL_PLAINTEXT", "me")),
    "TLS at plain": lambda k, _: (k.bootstrap_servers, _tls(k)),
    "TLS at plain login": lambda k, _: (_at(k, "SASL_PLAINTEXT"), k.secured.security("SASL_SSL", "me")),
    "no login": lambda k, _: (_at(k, "SASL_SSL"), _tls(k)),
    "no login, plain": lambda k, _: (_at(k, "SASL_PLAINTEXT"), None),
    "login at plain": lambda k, _: (k.bootstrap_servers, k.secured.security("SASL_PLAINTEXT", "me")),
    "wrong password, PLAIN": lambda k, _: (_at(k, "SASL_SSL"), _login(k, "PLAIN")),
    "wrong password, SCRAM": lambda k, _: (_at(k, "SASL_SSL"), _login(k, "SCRAM-SHA-512")),
    "token that has ended": lambda k, _: (_at(k, "SASL_SSL"), _token(k, works=True)),
    "no token": lambda k, _: (_at(k, "SASL_SSL"), _token(k, works=False)),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_wrong_way_to_connect(fault: str, secured_kafka: LocalKafka, tmp_path: Path) -> None:
    """It is refused at once, as what it is."""
    servers, security = FAULTS[fault](secured_kafka, tmp_path)
    consumer = ParallelConsumer("orders", bootstrap_servers=servers, group_id="billing", security=security)
    began = time.monotonic()
    with pytest.raises(AuthenticationFailed) as failure:
        await consumer.__aenter__()
    assert time.monotonic() - began < SLACK
    _in_docs(re.sub(r"ended 6\d s", "ended 60 s", str(failure.value)))


async def _bad(record: Record) -> Outgoing:
    if record.value == b"bad":
        raise ValueError("bad")
    return Outgoing(f"{record.topic}.out", record.value, record.key)


class Clerk:
    """A user with the rights that a test gives, on three topics and a group of its own."""

    def __init__(self, kafka: LocalKafka, name: str) -> None:
        self.kafka, self.topic, self.group = kafka, f"clerk.{name}", f"clerk.{name}.group"
        self.names = {
            f"{self.topic}.dlq": "orders.dlq",
            f"{self.topic}.out": "invoices",
            self.group: "billing",
            self.topic: "orders",
        }

    async def begin(self, *values: bytes) -> None:
        """Topics, and records in the first."""
        for name in (self.topic, f"{self.topic}.out", f"{self.topic}.dlq"):
            await self.kafka.create_topic(name)
        self.fill(*values)

    def fill(self, *values: bytes) -> None:
        fill(self.kafka.bootstrap_servers, self.topic, [Message(b"k%d" % i, v) for i, v in enumerate(values)])

    async def may(self, *operations: str, topic: str = "", group: str = "") -> None:
        await asyncio.to_thread(self.secured.allow, "clerk", *operations, topic=topic, group=group)

    async def may_not(self, *operations: str, topic: str = "", group: str = "") -> None:
        await asyncio.to_thread(self.secured.forbid, "clerk", *operations, topic=topic, group=group)

    @property
    def secured(self) -> Secured:
        return self.kafka.secured

    def consumer(self, *, until_end: bool = False) -> ParallelConsumer[Any, Any]:
        return ParallelConsumer(
            self.topic,
            bootstrap_servers=self.secured.bootstrap_servers(),
            group_id=self.group,
            security=self.secured.security("SASL_SSL", "clerk"),
            failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=f"{self.topic}.dlq"),
            until="end" if until_end else None,
            # Who may not use the group cannot leave it either: it waits for a session.
            session_timeout=3.0,
            heartbeat_interval=0.5,
        )

    async def refused(self, kind: type[ClientError]) -> str:
        """It cannot run; the message."""
        with pytest.raises(kind) as failure:
            async with self.consumer(until_end=True) as consumer:
                await consumer.run(_bad)
        return str(failure.value)


async def test_missing_rights(secured_kafka: LocalKafka, caplog: pytest.LogCaptureFixture) -> None:
    """Topic, group, output and dead letters: each is named, with the right; what cannot be put away waits, and goes on
    when the right is there. Nothing is lost."""
    clerk = Clerk(secured_kafka, "lacks")
    await clerk.begin(b"good", b"bad")
    await clerk.may("DESCRIBE", topic=f"{clerk.topic}.dlq")
    _in_docs(await clerk.refused(TopicNotFound), clerk.names)
    await clerk.may("DESCRIBE", topic=clerk.topic)
    _in_docs(await clerk.refused(NotAuthorized), clerk.names)
    await clerk.may("READ", group=clerk.group)
    _in_docs(await clerk.refused(NotAuthorized), clerk.names)
    await clerk.may("READ", topic=clerk.topic)
    await clerk.may("WRITE", topic=f"{clerk.topic}.other")  # else nobody of this user may produce at all
    consumer = clerk.consumer()
    async with consuming(consumer, _bad):
        await until(lambda: len(consumer.health().problems) == 2, what=lambda: str(consumer.health()))
        found = {one.message.split(" cannot")[0]: one.message for one in consumer.health().problems}
        _in_docs(found[f"{clerk.topic}-0 offset 1"], clerk.names)
        assert all(one.kind == "dead_letter_failed" for one in consumer.health().problems)
        assert (await committed(secured_kafka.bootstrap_servers, clerk.group))[0].offset == 0
        await clerk.may("WRITE", topic=f"{clerk.topic}.dlq")
        await until(lambda: consumer.stats().dead_lettered == 2, what=lambda: str(consumer.health()))
        assert consumer.health().problems == ()
    letters = await read_all(secured_kafka.bootstrap_servers, f"{clerk.topic}.dlq")
    assert {one.value for one in letters} == {b"good", b"bad"}
    (said,) = set(re.findall(r"ProduceFailed\('(could not produce to [a-z.]*out: [^']*)'", caplog.text))
    _in_docs(said, clerk.names)


async def test_looking_after_topics_without_the_rights(secured_kafka: LocalKafka) -> None:
    """Each refusal names what was to be done and the right that it needs; nothing has changed."""
    clerk = Clerk(secured_kafka, "looks-after")
    await clerk.begin(b"1")
    await clerk.may("DESCRIBE", topic=clerk.topic)
    await clerk.may("READ", group=clerk.group)
    place = TopicPartition(clerk.topic, 0)
    security = clerk.secured.security("SASL_SSL", "clerk")
    async with Admin(clerk.secured.bootstrap_servers(), security.client_options()) as admin:
        refused: dict[str, Coroutine[None, None, object]] = {
            "creating topic 'new': .* CREATE on the topic, or on the cluster": admin.create_topic("new"),
            f"deleting {clerk.topic}: .* DELETE on the topic": admin.delete_topics(clerk.topic),
            f"the configs of {clerk.topic}: .* DESCRIBE_CONFIGS on the topic": admin.configs(clerk.topic),
            f"deleting records of {place}: .* DELETE on the topic": admin.delete_records({place: 1}),
            "offsets of group 'another': .* DESCRIBE on the group": admin.committed("another"),
            f"deleting group '{clerk.group}': .* DELETE on the group": admin.delete_group(clerk.group),
        }
        for said, asking in refused.items():
            with pytest.raises(NotAuthorized, match=said):
                await asking
        topics = await admin.topics()
        assert (clerk.topic in topics, "new" in topics) == (True, False)
    assert len(await read_all(secured_kafka.bootstrap_servers, clerk.topic)) == 1


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_a_right_taken_away_while_it_runs(what: str, secured_kafka: LocalKafka) -> None:
    """The run ends with NotAuthorized, and says so; started anew with the right, it goes on where it was."""
    clerk = Clerk(secured_kafka, f"loses-{what}")
    await clerk.begin(b"1", b"2")
    for name in (f"{clerk.topic}.out", f"{clerk.topic}.dlq"):
        await clerk.may("WRITE", topic=name)
    await clerk.may("READ", topic=clerk.topic)
    await clerk.may("READ", group=clerk.group)
    place = {"topic": clerk.topic} if what == "topic" else {"group": clerk.group}
    consumer = clerk.consumer()
    async with consumer:
        running = asyncio.create_task(consumer.run(_bad))
        await until(lambda: running.done() or consumer.health().ready, what="it runs")
        await until(lambda: consumer.stats().succeeded == 2, what="both have ended")
        await consumer.commit_now()
        await clerk.may_not("READ", **place)
        clerk.fill(b"3", b"4")
        with pytest.raises(
            NotAuthorized, match=re.escape(f"{what} '{place[what]}': this user needs the permission READ")
        ):
            await running
        assert not consumer.health().live
        assert consumer.health().problems[0].kind == "failed"
    await clerk.may("READ", **place)
    async with clerk.consumer(until_end=True) as again:
        await again.run(_bad)
    outputs = await read_all(secured_kafka.bootstrap_servers, f"{clerk.topic}.out")
    assert {one.value for one in outputs} == {b"1", b"2", b"3", b"4"}
    assert len(outputs) <= 6


def test_the_page_promises_nothing_else() -> None:
    """Each message of the page's first table is one of a fault above."""
    assert len(re.findall(r"`no secure connection to [^`]*`", PAGE)) == 12
    assert PASSWORD not in PAGE
