"""Answers: both clients read the same, no more than is allowed, and what cannot be read is said in words."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import zstandard
from aiohttp import web

from aioparallel.http import Request, Response, http_handler
from aioparallel.records.errors import BadStatus, Reject, RequestFailed, RetryLater
from tests.support.http.asking import Kind, both, get, status_of
from tests.support.http.raw import Raw
from tests.support.http.service import Service

TEXT = b"all that was asked for, " * 1_000


def body_of(_item: object, response: Response) -> bytes:
    """Of an answer."""
    return response.content


def answered(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer of HTTP."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def deflated(content: bytes) -> bytes:
    """Without zlib's head, as some write it."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(content) + stream.flush()


@both
@pytest.mark.parametrize(
    ("coding", "content"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("GZIP", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("x-gzip", gzip.compress(TEXT) + b"\0" * 8),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", deflated(TEXT)),
        ("zstd", zstandard.compress(TEXT)),
        ("zstd", zstandard.compress(TEXT[:100]) + zstandard.compress(TEXT[100:])),
        ("utf-8", TEXT),
        ("aws-chunked", TEXT),
    ],
)
async def test_codings(client: Kind, coding: str, content: bytes, raw: Raw) -> None:
    """Those that are asked for are read; what is the name of none changes nothing."""
    raw.reply = lambda *_: answered(content, f"Content-Encoding: {coding}")
    async with http_handler(get, body_of, client=client, base_url=raw.url).alone() as handle:
        assert await handle(1) == await handle(2) == TEXT
    assert raw.connections == 1
    assert "accept-encoding: gzip, deflate, zstd\r\n" in raw.heads[0].lower()


@both
async def test_codings_in_several_headers(client: Kind, raw: Raw) -> None:
    """They are one list."""
    raw.reply = lambda *_: answered(TEXT, "Content-Encoding: identity", "Content-Encoding: br")
    async with http_handler(get, body_of, client=client, base_url=raw.url).alone() as handle:
        with pytest.raises(RequestFailed, match="Content-Encoding br, which"):
            await handle(1)


@both
@pytest.mark.parametrize(
    ("coding", "content", "says"),
    [
        ("br", b"\x0b\x02\x80text\x03", "its answer has the Content-Encoding br, which was not asked for"),
        ("gzip, br", b"x", "its answer has the Content-Encoding gzip, br, which was not asked for"),
        ("gzip", b"secret, and no gzip", "its answer is not valid gzip"),
        ("gzip", gzip.compress(TEXT)[:-9], "its answer, in gzip, breaks off"),
        ("deflate", b"\xff secret", "its answer is not valid deflate"),
        ("deflate", zlib.compress(TEXT)[:-2], "its answer, in deflate, breaks off"),
        ("zstd", b"secret, and none", "its answer is not valid zstd"),
        ("zstd", zstandard.compress(TEXT)[:-2], "its answer, in zstd, breaks off"),
    ],
)
async def test_bodies_that_cannot_be_read(client: Kind, coding: str, content: bytes, says: str, raw: Raw) -> None:
    """A failure that says so; where the status says that the body is not wanted, the status counts."""
    raw.reply = lambda *_: answered(content, f"Content-Encoding: {coding}")
    async with http_handler(get, body_of, client=client, base_url=raw.url).alone() as handle:
        with pytest.raises(RequestFailed) as found:
            await handle(1)
        assert str(found.value) == f"GET {raw.url}/items/1: {says}"
        raw.reply = lambda *_: answered(content, f"Content-Encoding: {coding}", status="500 Broken")
        with pytest.raises(BadStatus):
            await handle(1)
        raw.reply = lambda *_: answered(content, f"Content-Encoding: {coding}", "Retry-After: 60", status="429 Slow")
        with pytest.raises(RetryLater):
            await handle(1)


def bomb(coding: str) -> bytes:
    """A hundred million bytes in few."""
    made: Any = zlib.compressobj(9, wbits=31) if coding == "gzip" else zlib.compressobj(9, wbits=15)
    if coding == "zstd":
        made = zstandard.ZstdCompressor(level=19).compressobj()
    return b"".join([*(made.compress(bytes(1_000_000)) for _ in range(100)), made.flush()])


@both
@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_few_bytes_that_become_many(client: Kind, coding: str, raw: Raw) -> None:
    """They are counted decoded, while they come."""
    content = bomb(coding)
    assert len(content) < 200_000
    raw.reply = lambda *_: answered(content, f"Content-Encoding: {coding}")
    handler = http_handler(get, body_of, client=client, base_url=raw.url, max_response_bytes=1_000_000)
    async with handler.alone() as handle:
        tracemalloc.start()
        try:
            with pytest.raises(RequestFailed, match="more than 1,000,000 bytes, which is max_response_bytes"):
                await handle(1)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


@both
@pytest.mark.parametrize("is_told", [True, False])
async def test_answers_without_end(client: Kind, is_told: bool, raw: Raw) -> None:
    """They are not read to their end, whether their length was told or not; and one of just that size is."""
    sent = 0

    def stream() -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 900000000\r\n" if is_told else b"") + b"\r\n"
        while sent < 900_000_000:
            sent += 100_000
            yield bytes(100_000)

    raw.reply = lambda connection, _: answered(bytes(1_000_000)) if connection else stream()
    handler = http_handler(get, body_of, client=client, base_url=raw.url, max_response_bytes=1_000_000)
    async with handler.alone() as handle:
        with pytest.raises(RequestFailed, match="max_response_bytes"):
            await handle(1)
        assert len(await handle(2)) == 1_000_000
    assert sent < 50_000_000


async def test_a_length_that_is_none(raw: Raw) -> None:
    """A client of the user's own goes by the Transfer-Encoding where there is a length, too: so does the bound."""
    sent = 0

    def stream() -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        while sent < 100_000_000:
            sent += 100_000
            yield b"186a0\r\n" + bytes(100_000) + b"\r\n"
        yield b"0\r\n\r\n"

    def own(_: int) -> httpx.AsyncClient:
        return httpx.AsyncClient()

    raw.reply = lambda *_: stream()
    async with http_handler(get, body_of, client=own, base_url=raw.url, max_response_bytes=1_000).alone() as handle:
        with pytest.raises(RequestFailed, match="max_response_bytes"):
            await handle(1)
    assert sent < 50_000_000


@both
async def test_bodies_that_nobody_wants(client: Kind, served: Service) -> None:
    """Of an error that is larger than what is allowed the status counts."""
    served.answer = lambda _: web.Response(status=500, body=bytes(5_000_000))
    handler = http_handler(get, client=client, base_url=served.url, max_response_bytes=1_000)
    async with handler.alone() as handle:
        with pytest.raises(BadStatus, match="answered 500"):
            await handle(1)


@both
@pytest.mark.parametrize("location", ["http://[broken/", "http://x:port/", "/there", "ftp://x", "http://\x7f/"])
async def test_redirects_are_answers(client: Kind, location: str, raw: Raw) -> None:
    """Wherever they lead; their bodies are there for who wants them."""
    raw.reply = lambda *_: answered(
        gzip.compress(TEXT), f"Location: {location}", "Content-Encoding: gzip", status="302 F"
    )

    def both_of(_item: object, response: Response) -> tuple[int, str, bytes]:
        return response.status, response.headers["Location"], response.content

    async with http_handler(get, both_of, client=client, base_url=raw.url, statuses={302: "done"}).alone() as handle:
        assert await handle(1) == (302, location, TEXT)
        assert await handle(2) == (302, location, TEXT)
    assert len(raw.heads) == 2
    async with http_handler(get, client=client, base_url=raw.url).alone() as handle:
        with pytest.raises(Exception, match="/items/1: answered 302"):
            await handle(1)


@both
@pytest.mark.parametrize("closes", [True, False], ids=["breaks off", "stands still"])
@pytest.mark.parametrize("status", ["404 No", "302 F"])
async def test_bodies_that_nobody_wants_and_that_never_end(client: Kind, status: str, closes: bool, raw: Raw) -> None:
    """The status has said all."""
    raw.closes = closes
    raw.reply = lambda *_: answered(TEXT, "Location: /there", status=status)[:-1]
    async with http_handler(get, client=client, base_url=raw.url).alone() as handle:
        with pytest.raises(Reject, match=f"answered {status[:3]}"):
            await handle(1)
    assert len(raw.heads) == 1


async def read_httpx(answer: httpx.Response) -> None:
    """A hook."""
    await answer.aread()


async def read_aiohttp(answer: aiohttp.ClientResponse) -> None:
    """In place of ``raise_for_status``."""
    await answer.read()


class Reading(httpx.Auth):
    requires_response_body = True


@pytest.mark.parametrize(
    "made",
    [
        lambda _: httpx.AsyncClient(event_hooks={"response": [read_httpx]}),
        lambda _: httpx.AsyncClient(auth=Reading()),
        lambda _: aiohttp.ClientSession(raise_for_status=read_aiohttp),
    ],
    ids=["httpx, a hook", "httpx, authentication", "aiohttp"],
)
@pytest.mark.parametrize("status", ["200 OK", "302 F"])
@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_bodies_that_a_client_of_the_users_own_has_read(
    made: Any, status: str, coding: str, is_chunked: bool, raw: Raw
) -> None:
    """They are there all the same, and no longer than is allowed."""
    content = gzip.compress(TEXT) if coding else TEXT
    reply = answered(content, "Location: /there", f"Content-Encoding: {coding}", status=status)
    if is_chunked:
        head = reply.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\nLocation: /there\r\n"
        head += f"Content-Encoding: {coding}\r\n\r\n".encode()
        reply = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    raw.reply = lambda *_: reply
    handler = http_handler(get, body_of, client=made, base_url=raw.url, statuses={302: "done"})
    async with handler.alone() as handle:
        assert await handle(1) == await handle(2) == TEXT
    assert raw.connections == 1
    handler = http_handler(
        get, body_of, client=made, base_url=raw.url, statuses={302: "done"}, max_response_bytes=len(TEXT) - 1
    )
    async with handler.alone() as handle:
        with pytest.raises(RequestFailed, match="more than"):
            await handle(1)


async def test_a_session_that_raises_for_a_status_does_not(served: Service) -> None:
    """The handler's own table says what a status means."""
    served.answer = lambda request: web.Response(status=int(request.path[1:]), headers={"Retry-After": "5"})
    handler = http_handler(
        lambda status: Request("GET", f"/{status}"),
        body_of,
        client=lambda _: aiohttp.ClientSession(raise_for_status=True),
        base_url=served.url,
        statuses={410: "done"},
    )
    async with handler.alone() as handle:
        assert await handle(410) == b""
        with pytest.raises(Reject):
            await handle(404)
        with pytest.raises(RetryLater):
            await handle(429)


async def test_a_client_that_follows_redirects_does(served: Service) -> None:
    """One of the user's own."""

    def answer(request: web.BaseRequest) -> web.StreamResponse | None:
        return web.Response(status=302, headers={"Location": "/there"}) if request.path != "/there" else None

    served.answer = answer
    handler = http_handler(
        get, status_of, client=lambda _: httpx.AsyncClient(follow_redirects=True), base_url=served.url
    )
    async with handler.alone() as handle:
        assert await handle(1) == 200
    assert [one.path for one in served.asked] == ["/items/1", "/there"]


@pytest.mark.parametrize(
    ("status", "headers", "raised"),
    [
        (408, {}, "BadStatus"),
        (421, {}, "BadStatus"),
        (425, {}, "BadStatus"),
        (413, {"Retry-After": "5"}, "NoRoom"),
        (413, {}, "Reject"),
        (503, {"Retry-After": "5"}, "NoRoom"),
        (503, {}, "BadStatus"),
        *((status, {}, "BadStatus") for status in (500, 502, 504, 507)),
        *((status, {}, "Reject") for status in (300, 301, 304, 307, 400, 401, 403, 404, 405, 409, 410, 412, 422, 431)),
    ],
)
async def test_what_a_second_try_may_mend(status: int, headers: dict[str, str], raised: str, served: Service) -> None:
    """By RFC 9110, 8470 and 6585."""
    served.answer = lambda _: web.Response(status=status, headers=headers)
    async with http_handler(get, client="aiohttp", base_url=served.url).alone() as handle:
        with pytest.raises((BadStatus, Reject, RetryLater)) as found:
            await handle(1)
    assert type(found.value).__name__ == raised


@pytest.mark.parametrize("charset", ["no-such", "base64", "undefined", "idna", "a\0b", "utf-16"])
def test_a_charset_that_is_none(charset: str) -> None:
    """The text is there all the same, read as UTF-8 where that charset cannot be used."""
    request = Request("GET", "http://localhost/")
    response = Response(request, 200, {"Content-Type": f"text/plain; charset={charset}"}, "caf\u00e9".encode())
    assert isinstance(response.text, str)
    if charset != "utf-16":
        assert response.text == "caf\u00e9"
