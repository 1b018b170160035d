"""What leaves http of a failure is our own words: no header, no query, nothing of an answer, wherever it is written."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from typing import Any, cast

import httpx
import pytest

from aioparallel import FailurePolicy, RetryPolicy
from aioparallel.http import Request, http_handler
from aioparallel.http.requests import shown
from aioparallel.records.errors import ConfigurationError, RequestFailed
from aioparallel.testing.memory import InMemoryBroker
from tests.support.http.asking import Kind, both
from tests.support.http.raw import Raw
from tests.support.memory.consuming import consumer_of, produce

SECRETS = ("hunter2", "tok3n", "passw0rd", "pr1vate")

MALFORMED = [
    b"pr1vate, and no HTTP\r\n\r\n",
    b"HTTP/1.1 pr1vate\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"pr1vate" * 10_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\npr1vate\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: pr1vate\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\npr1vate",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\npr1vate\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 7\r\n\r\npr1vate",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: pr1vate, br\r\nContent-Length: 7\r\n\r\npr1vate",
    None,
]


def ask(_item: object) -> Request:
    """With secrets wherever they can be."""
    return Request(
        "POST", "/x", params={"token": "tok3n"}, headers={"Authorization": "Bearer hunter2"}, json="passw0rd"
    )


def said_by(error: BaseException) -> str:
    """Of it, and of all that comes with it."""
    assert error.__cause__ is None
    assert error.__context__ is None
    return "".join([repr(error), *traceback.format_exception(error)])


@both
@pytest.mark.parametrize("reply", MALFORMED)
async def test_malformed_answers(client: Kind, reply: bytes | None, raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    """They are RequestFailed, by both clients; nothing is logged by them, either."""
    caplog.set_level(logging.DEBUG)
    raw.reply = lambda *_: reply
    raw.closes = True
    async with http_handler(ask, client=client, base_url=raw.url, idempotency_key=None).alone() as handle:
        with pytest.raises(RequestFailed, match=f"POST {raw.url}/x: ") as found:
            await handle(1)
    said = said_by(found.value)
    del found
    gc.collect()
    said += "".join(f"{one.getMessage()} {one.exc_info} {one.exc_text}" for one in caplog.records)
    assert not any(secret in said for secret in SECRETS)


@both
async def test_what_is_stored_and_shown(client: Kind, raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    """Dead letters, with their traceback, the log, and health."""
    caplog.set_level(logging.INFO)
    raw.reply = lambda *_: b"HTTP/1.1 pr1vate\r\n\r\n"
    raw.closes = True
    broker = InMemoryBroker()
    for topic in ("t", "t.dlq"):
        broker.create_topic(topic, 1)
    produce(broker, [b"a"])
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=12, first_delay=0.001, multiplier=1), dead_letter="t.dlq")
    told = ""
    async with asyncio.timeout(30), consumer_of(broker, failures=failures) as consumer:
        running = asyncio.create_task(consumer.run(http_handler(ask, client=client, base_url=raw.url)))
        while not broker.records("t.dlq"):
            told += str(consumer.health()) if consumer._engine else ""
            await asyncio.sleep(0)
        consumer.stop()
        await running
    (letter,) = broker.records("t.dlq")
    said = told + repr(letter.headers) + caplog.text
    assert "aioparallel.errors.RequestFailed" in repr(letter.headers)
    assert "problems=(Problem" in told
    assert "/x: its answer breaks off or is not HTTP" in said
    for secret in SECRETS[:2] + SECRETS[3:]:
        assert secret not in said


async def test_no_line_of_each_request(raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    """httpx writes one with the whole address; of requests that others send it still does."""
    caplog.set_level(logging.INFO)
    async with http_handler(ask, base_url=raw.url, idempotency_key=None).alone() as handle:
        await handle(1)
    assert not [one for one in caplog.records if one.name == "httpx"]
    async with httpx.AsyncClient() as theirs:
        await theirs.get(raw.url)
    assert [one for one in caplog.records if one.name == "httpx"]


async def test_errors_in_a_client_of_the_users_own(raw: Raw) -> None:
    """Whatever it raises; what it decides about the record stays."""

    class Auth(httpx.Auth):
        async def async_auth_flow(self, request: httpx.Request) -> Any:
            if request.url.path:
                raise KeyError("hunter2", request.headers)
            yield request

    handler = http_handler(ask, client=lambda _: httpx.AsyncClient(auth=Auth()), base_url=raw.url, idempotency_key=None)
    async with handler.alone() as handle:
        with pytest.raises(RequestFailed, match="/x: KeyError") as found:
            await handle(1)
    assert "hunter2" not in said_by(found.value)


@both
@pytest.mark.parametrize("own", ["Authorization", "authorization", "AUTHORIZATION"])
async def test_names_of_headers_in_any_case(client: Kind, own: str, raw: Raw) -> None:
    """A request's own stands in place of the handler's, and one is sent."""

    def mine(_item: object) -> Request:
        return Request("GET", "/x", headers={own: "mine", "accept-encoding": "identity"})

    headers = {"Authorization": "of all", "X-Other": "1"}
    async with http_handler(mine, client=client, base_url=raw.url, headers=headers).alone() as handle:
        await handle(1)
    lines = [line.lower() for line in raw.heads[0].split("\r\n")]
    assert [line for line in lines if line.startswith("authorization")] == ["authorization: mine"]
    assert [line for line in lines if line.startswith("accept-encoding")] == ["accept-encoding: identity"]
    assert "x-other: 1" in lines


def test_a_name_that_is_given_twice() -> None:
    """In two cases it would be sent twice."""
    twice = {"Authorization": "hunter2", "authorization": "tok3n"}
    for refused in (lambda: Request("GET", "/x", headers=twice), lambda: http_handler(ask, headers=twice)):
        with pytest.raises(ConfigurationError, match=r"headers\['authorization'\]='...': is given twice") as found:
            refused()
        assert "hunter2" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://host/a?token=tok3n#x", "http://host/a"),
        ("http://user:hunter2@host/a", "http://host/a"),
        ("http://user:hun/ter2@host/a", "http://host/a"),
        ("http://user:hun?ter2@host/a?b", "http://host/a"),
        ("http://user:hun#ter2@host:80/a", "http://host:80/a"),
        ("http://user:1/hun/ter2@x@host/a", "http://user:1/hun/ter2@x@host/a"),  # port 1 of a host, and a path
        ("http://user:123456/ter2@host/a", "http://host/a"),
        ("user:hunter2@host/a", "host/a"),
        ("user:hun/ter2@host/a?b", "host/a"),
        ("//user:hun/ter2@host/a", "host/a"),
        ("https:/user:hunter2@host/a", "host/a"),
        ("http://host:8080/@me", "http://host:8080/@me"),
        ("http://[::1]:80/@me", "http://[::1]:80/@me"),
        ("http://[::1]/@me", "http://[::1]/@me"),
        ("http://host/@me", "http://host/@me"),
        ("/users/@me?x", "/users/@me"),
        ("host", "host"),
    ],
)
def test_addresses_in_messages(url: str, told: str) -> None:
    """Without a user, his password and the query, also where no request could be made of it."""
    assert shown(url) == told


@pytest.mark.parametrize(
    "url", ["http://user:hun/ter2@host", "user:hun/ter2@host", "ftp://user:hun/ter2@host", "user:ter2@"]
)
def test_addresses_that_are_refused(url: str) -> None:
    """The message has no password in it."""
    for refused in (
        lambda: http_handler(ask, base_url=url + "\n"),
        lambda: http_handler(ask, base_url=cast("str", url.encode())),
        lambda: Request("GET", cast("str", url.encode())),
        lambda: Request("GET", url + "\0"),
    ):
        with pytest.raises(ConfigurationError) as found:
            refused()
        assert "ter2" not in str(found.value)


@both
@pytest.mark.parametrize("address", ["http://user:hun/ter2@host", "user:hun/ter2@host/x", "http://user:ter2@/x"])
async def test_addresses_that_nobody_can_ask(client: Kind, address: str) -> None:
    """They fail, without the password."""

    def there(_item: object) -> Request:
        return Request("GET", address)

    async with http_handler(there, client=client).alone() as handle:
        with pytest.raises((RequestFailed, ConfigurationError)) as found:
            await handle(1)
    assert "ter2" not in str(found.value)
