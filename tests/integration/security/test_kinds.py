"""Each kind of security: a record through consumer, output, dead letter and command line; and no secret anywhere."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import pytest

from aioparallel import (
    AuthenticationFailed,
    FailurePolicy,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    Security,
    TopicPartition,
)
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.config.security.security import Mechanism
from aioparallel.spark.group_requests import GroupSettings, Position
from aioparallel.testing import LocalKafka, Secured
from aioparallel.testing.brokers.secured import ListenerName
from tests.conftest import PASSWORD
from tests.support.command_line import invoke
from tests.support.kafka.consuming import consume
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.real

ONCE: Final = RetryPolicy(max_attempts=1)
KINDS: Final[list[tuple[ListenerName, Mechanism | None]]] = [
    ("SSL", None),
    ("MUTUAL_SSL", None),
    *(
        (listener, mechanism)
        for listener in cast("tuple[ListenerName, ...]", ("SASL_SSL", "SASL_PLAINTEXT"))
        for mechanism in cast("tuple[Mechanism, ...]", ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"))
    ),
]


class Overheard(logging.Handler):
    """All that is logged, as it would be written, and the reprs of what stands in it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text += f"{record.getMessage()} {record.args!r} {record.exc_info!r}\n"


@pytest.fixture
def overheard() -> Iterator[Overheard]:
    """At DEBUG, of all loggers; a process that has never connected has no filter on them yet."""
    handler, root = Overheard(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def _security(secured: Secured, listener: ListenerName, mechanism: Mechanism | None) -> Security:
    return secured.security(listener, "me", mechanism or "PLAIN")


def _flags(secured: Secured, security: Security, directory: Path) -> list[str]:
    """The same for the command line, with its secrets in files."""
    flags = ["--security-protocol", security.protocol]
    given = {"--ca-file": security.ca_file, "--certificate-file": security.certificate_file}
    given |= {"--mechanism": security.mechanism, "--username": security.username}
    if security.mechanism == "OAUTHBEARER":
        (directory / "token").write_text(secured.token("me"))
        given["--token-file"] = directory / "token"
    elif security.mechanism is not None:
        (directory / "password").write_text(f"{PASSWORD}\n")
        given["--password-file"] = directory / "password"
    return flags + [str(part) for pair in given.items() if pair[1] is not None for part in pair]


async def _handle(record: Record) -> Outgoing:
    if record.value == b"bad":
        raise ValueError("bad")
    return Outgoing(f"{record.topic}-out", record.value)


@pytest.mark.parametrize(("listener", "mechanism"), KINDS)
async def test_a_record_through_everything(
    secured_kafka: LocalKafka,
    listener: ListenerName,
    mechanism: Mechanism | None,
    tmp_path: Path,
    overheard: Overheard,
) -> None:
    """One becomes an output, one a dead letter, which the command line lists, and replays from where it went; the
    secret is in no line, repr or statistic."""
    kafka, secured = secured_kafka, secured_kafka.secured
    servers, security = secured.bootstrap_servers(listener), _security(secured, listener, mechanism)
    topic = f"kind-{listener}-{mechanism}"
    for name in (topic, f"{topic}-out", f"{topic}-dlq"):
        await kafka.create_topic(name)
    fill(kafka.bootstrap_servers, topic, [Message(b"k", b"good"), Message(b"k", b"bad")])
    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"group-{topic}",
        security=security,
        failures=FailurePolicy(retry=ONCE, dead_letter=f"{topic}-dlq"),
        until="end",
    )
    stats = await consume(consumer, _handle)
    assert (stats.succeeded, stats.dead_lettered) == (1, 1)
    assert [one.value for one in await read_all(kafka.bootstrap_servers, f"{topic}-out")] == [b"good"]
    assert consumer.health().problems == ()
    async with Admin(servers, security.client_options()) as admin:
        assert topic in await admin.topics()
    # What tells Kafka how far a query of Spark has read.
    async with GroupSettings(servers, security.client_options()).coordinator(f"spark-{topic}", DEADLINE) as group:
        assert await group.users() is None
        assert await group.committed() == {}
        assert await group.commit({TopicPartition(topic, 0): Position(1, "mark")}) == {}
    command = ("--bootstrap-servers", servers, "--group", f"dlq-{topic}", *_flags(secured, security, tmp_path))
    listed = await asyncio.to_thread(invoke, "dlq", "list", f"{topic}-dlq", *command)
    assert "1 open letter" in listed.output
    replayed = await asyncio.to_thread(invoke, "dlq", "replay", f"{topic}-dlq", "--yes", *command)
    assert (replayed.exit_code, len(await read_all(kafka.bootstrap_servers, topic))) == (0, 3), replayed.output
    shown = [repr(one) for one in (consumer, consumer.options, security, security.client_options(), stats, kafka)]
    _check_no_secret("".join([overheard.text, *shown, listed.output, replayed.output, str(consumer.health())]), secured)


WRONG: Final[list[tuple[str, Mapping[str, object]]]] = [
    ("PLAIN", {"username": "me", "password": "wrong-pass-2093"}),
    ("SCRAM-SHA-512", {"username": "me", "password": lambda: "wrong-pass-2093"}),
    ("OAUTHBEARER", {}),
]


@pytest.mark.parametrize(("mechanism", "login"), WRONG)
async def test_refused_logins_show_no_secret(
    secured_kafka: LocalKafka, mechanism: Mechanism, login: Mapping[str, object], overheard: Overheard
) -> None:
    """Neither the wrong secret nor the right one: not in the message, nor in its causes, their arguments and the
    locals' reprs of their tracebacks."""
    secured = secured_kafka.secured

    async def token() -> str:
        return secured.token("me", -60)

    given = login or {"token": token}
    security = Security("SASL_SSL", ca_file=secured.authority.ca_file, mechanism=mechanism, **given)  # type: ignore[arg-type]
    consumer = ParallelConsumer(
        "any", bootstrap_servers=secured.bootstrap_servers(), group_id="refused", security=security
    )
    with pytest.raises(AuthenticationFailed) as failure:
        await consumer.__aenter__()
    told, error = "", cast("BaseException | None", failure.value)
    while error is not None:
        told += f"{error!r} {error.args!r} {''.join(traceback.format_exception(error))}"
        error = error.__cause__ or error.__context__
    shown = [repr(security), repr(consumer.options), str(consumer.health()), str(consumer.stats())]
    text = "".join([overheard.text, told, *shown])
    assert "refused" in text or "invalid credentials" in text.lower() or "Invalid username" in text
    assert "wrong-pass-2093" not in text
    _check_no_secret(text, secured)
    gc.collect()


def _check_no_secret(text: str, secured: Secured) -> None:
    assert PASSWORD not in text
    # Tokens of Kafka's tests all begin with the same header.
    assert secured.token("me").split(".")[0] not in text
    assert "PRIVATE KEY" not in text


def test_wrong_options_show_no_secret(tmp_path: Path) -> None:
    """Refused when constructed: the option is named, a secret beside it or in it is not."""
    cases: list[Mapping[str, object]] = [
        {"mechanism": "PLAIN", "username": "me", "password": "wrong-pass-2093", "token_file": "x"},
        {"mechanism": "PLAIN", "username": "me", "password": b"wrong-pass-2093"},
        {"mechanism": "OAUTHBEARER", "token": "wrong-pass-2093"},
        {"mechanism": "PLAIN", "password": "wrong-pass-2093"},
        {"mechanism": "NONE", "username": "me", "password": "wrong-pass-2093"},
        {"mechanism": "PLAIN", "username": "me", "password": "wrong-pass-2093", "password_file": "x"},
        {"mechanism": "PLAIN", "username": "me", "password": "a", "key_password": "wrong-pass-2093"},
    ]
    for case in cases:
        with pytest.raises(ValueError, match="Security") as failure:
            Security("SASL_SSL", **case)  # type: ignore[arg-type]
        assert "wrong-pass-2093" not in f"{failure.value!r} {failure.value.__dict__!r}"
