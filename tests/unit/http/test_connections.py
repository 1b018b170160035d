"""Connections: how many are kept that nobody uses, and those that the server closes while something is sent on them."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import resource
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest

from aioparallel.http import Request, http_handler
from aioparallel.http.connections import Connections
from aioparallel.records.errors import OutOfResources, RequestFailed
from tests.support.http.asking import Kind, both, get, status_of
from tests.support.http.raw import OK, Raw, raw_service
from tests.support.waiting import until


async def test_what_is_private_to_aiohttp_is_there() -> None:
    """By these names, with these parameters and items."""
    theirs, ours = aiohttp.TCPConnector._create_connection, Connections._create_connection
    for one in (theirs, ours):
        assert list(inspect.signature(one).parameters) == ["self", "req", "traces", "timeout"]
    async with aiohttp.TCPConnector() as connector:
        assert connector._conns == {}
        assert connector._acquired == set()
        assert type(connector._conns[object()]) is deque  # type: ignore[index]  # of protocols, and when each was used last


@asynccontextmanager
async def services(number: int) -> AsyncIterator[list[Raw]]:
    """So many hosts."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(raw_service()) for _ in range(number)]


@both
async def test_few_are_kept_of_many_hosts(client: Kind) -> None:
    """A hundred in all, or as many as may be in use; those that were used last."""

    def ask(host: Raw) -> Request:
        return Request("GET", host.url)

    async with services(160) as hosts, http_handler(ask, status_of, client=client).alone(max_concurrency=10) as handle:
        for host in hosts:
            await handle(host)
        await until(lambda: sum(host.open for host in hosts) == 100)
        assert [host.open for host in hosts] == [0] * 60 + [1] * 100
        for host in hosts[60:]:
            await handle(host)
        assert [host.connections for host in hosts] == [1] * 160
    await until(lambda: not any(host.open for host in hosts))


@both
async def test_few_are_kept_of_many_that_were_in_use_at_once(client: Kind) -> None:
    """They were none too many when they were opened."""

    def ask(host: Raw) -> Request:
        return Request("GET", host.url)

    async with services(190) as hosts, http_handler(ask, client=client).alone(max_concurrency=100) as handle:
        for host in hosts[:90]:
            await handle(host)
        await asyncio.gather(*(handle(host) for host in hosts[90:]))
        await until(lambda: sum(host.open for host in hosts) == 100)
        assert [host.open for host in hosts] == [0] * 90 + [1] * 100


@both
async def test_as_many_are_kept_as_may_be_in_use(client: Kind, raw: Raw) -> None:
    """None is closed for the next request to open it again."""
    async with http_handler(get, client=client, base_url=raw.url).alone(max_concurrency=150) as handle:
        for _ in range(3):
            await asyncio.gather(*(handle(number) for number in range(150)))
        assert raw.connections == raw.open == 150


def post_with_key(_item: object) -> Request:
    """It may be sent twice."""
    return Request("POST", "/x", content=b"body", headers={"idempotency-key": "1"})


def post(_item: object) -> Request:
    """It may not."""
    return Request("POST", "/x", content=b"body")


@both
@pytest.mark.parametrize("request_of", [get, post_with_key])
@pytest.mark.parametrize("reply", [None, b""], ids=["reset", "closed"])
async def test_what_is_lost_on_an_open_connection_goes_on_a_new_one(
    client: Kind, request_of: Any, reply: bytes | None, raw: Raw
) -> None:
    """Ten were kept, and the server closes each when the next request comes on it: one is enough to know it of all."""
    raw.reply = lambda _, request: reply if request else OK
    raw.closes = False
    handler = http_handler(request_of, status_of, client=client, base_url=raw.url, idempotency_key=None)
    async with handler.alone(max_concurrency=10) as handle:
        await asyncio.gather(*(handle(number) for number in range(10)))
        assert raw.connections == 10
        if reply == b"":
            raw.closes = True  # with nothing said
        assert await handle(1) == 200
        assert await handle(2) == 200


@both
async def test_what_may_not_be_sent_twice_is_not(client: Kind, raw: Raw) -> None:
    """A POST without a key has failed, in our words."""
    raw.reply = lambda _, request: None if request else OK
    async with http_handler(post, client=client, base_url=raw.url, idempotency_key=None).alone() as handle:
        await handle(1)
        with pytest.raises(RequestFailed, match=r"POST .*/x: (Client|Server|Connection)"):
            await handle(2)
    assert len(raw.heads) == 2


@both
async def test_a_new_connection_that_is_lost_is_a_failure(client: Kind, raw: Raw) -> None:
    """A server that answers nobody is asked no more than once for it, in a POST."""
    raw.reply = lambda *_: None
    async with http_handler(post_with_key, client=client, base_url=raw.url).alone() as handle:
        with pytest.raises(RequestFailed):
            await handle(1)
    assert len(raw.heads) == 1


@pytest.mark.parametrize("made", [httpx.AsyncClient, aiohttp.ClientSession])
async def test_clients_of_the_users_own_ask_again_as_well(made: Any, raw: Raw) -> None:
    """Once: nobody knows whether their connection had been open."""
    raw.reply = lambda _, request: None if request else OK
    handler = http_handler(post_with_key, status_of, client=lambda _: made(), base_url=raw.url, idempotency_key=None)
    async with handler.alone() as handle:
        for number in range(4):
            assert await handle(number) == 200


@both
async def test_nothing_left_to_open(client: Kind, raw: Raw) -> None:
    """The record waits, and what nobody uses is closed for it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with raw_service() as other:

        def ask(item: int) -> Request:
            return Request("GET", other.url if item == 99 else raw.url)

        async with http_handler(ask, status_of, client=client).alone(max_concurrency=20) as handle:
            await asyncio.gather(*(handle(number) for number in range(20)))
            assert raw.open == 20
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
            try:
                with pytest.raises(OutOfResources) as found:
                    await handle(99)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert found.value.what == os.strerror(errno.EMFILE)
            await until(lambda: not raw.open)
            assert await handle(99) == 200
