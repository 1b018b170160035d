"""The small HTTP server: requests that are none, too large, too slow; readers that do not read; its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest

from aioparallel.observe.http_server import PLAIN, Answer, HttpServer, Request, Route
from tests.support.waiting import until


async def echo(request: Request) -> Answer:
    return Answer(
        200, PLAIN, f"{request.method} {request.path} {request.headers.get('x', '-')} ".encode() + request.body
    )


ROUTES = {
    "/": Route(echo),
    "/some/*": Route(echo),
    "/post": Route(echo, methods=("POST",), longest_body=10),
}


def server_of(*, timeout: float = 10.0, never: Route | None = None, much: Route | None = None) -> HttpServer:
    more = {"/never": never, "/much": much}
    return HttpServer({**ROUTES, **{path: route for path, route in more.items() if route}}, 0, timeout=timeout)


async def said(server: HttpServer, data: bytes) -> tuple[bytes, bytes]:
    """First line and headers, and the body, of the answer to what is sent. The client keeps its side open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"GET / - "),
        (b"GET /?a=b HTTP/1.0\r\nX:  y \r\n\r\n", 200, b"GET / y "),
        (b"GET / HTTP/1.1\n\n", 200, b"GET / - "),
        (b"HEAD / HTTP/1.0\r\n\r\n", 200, b""),
        (b"GET /some/a/b HTTP/1.1\r\n\r\n", 200, b"GET /some/a/b - "),
        (b"POST /post HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 200, b"POST /post - abc"),
        (b"POST /post HTTP/1.1\r\n\r\n", 200, b"POST /post - "),
        (b"GET /x HTTP/1.1\r\n\r\n", 404, b"not found\n"),
        (b"GET /some HTTP/1.1\r\n\r\n", 404, b"not found\n"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405, b"only GET, HEAD\n"),
        (b"HEAD /post HTTP/1.1\r\n\r\n", 405, b""),
        (b"HEAD /x HTTP/1.1\r\n\r\n", 404, b""),
        (b"HEAD / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 413, b""),
        (b"POST /post HTTP/1.1\r\nContent-Length: 11\r\n\r\n" + b"x" * 11, 413, b"the body has more than 10 bytes\n"),
        (b"POST /post HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400, b"Content-Length is no number\n"),
        (
            b"POST /post HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
            b"two headers content-length\n",
        ),
        (b"POST /post HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, None),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, None),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", 400, None),
        (b"GET /" + b"x" * 40_000, 400, None),
        (b"GET / HTTP/1.1\r\nnothing\r\n\r\n", 400, b"a header has no name\n"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200, 431, None),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 40_000 + b"\r\n\r\n", 431, None),
        (b"GET / HTTP/1.1\r\n" + (b"a: " + b"b" * 5_000 + b"\r\n") * 4 + b"\r\n", 431, None),
    ],
)
async def test_each_request_gets_an_answer(data: bytes, status: int, body: bytes | None) -> None:
    """What is no request, or too large, as well: the client can read why."""
    async with server_of() as server:
        head, found = await said(server, data)
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body is None or found == body
    if not data.startswith(b"HEAD"):
        assert f"Content-Length: {len(found)}".encode() in head


async def test_allowed_methods_are_named() -> None:
    """In the header Allow."""
    async with server_of() as server:
        head, _ = await said(server, b"PUT / HTTP/1.1\r\n\r\n")
    assert b"\r\nAllow: GET, HEAD\r\n" in head


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    """As curl does with larger bodies; and none if the body is too large."""
    async with server_of() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /post HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ab")
        assert (await reader.read()).endswith(b"POST /post - ab")
        writer.close()
        head, _ = await said(server, b"POST /post HTTP/1.1\r\nContent-Length: 20\r\nExpect: 100-continue\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")


async def test_a_request_that_does_not_arrive_in_time_is_dropped() -> None:
    """Nothing is answered, and others are served meanwhile."""
    async with server_of(timeout=0.3) as server:
        slow = asyncio.create_task(said(server, b"GET / HTT"))
        body = asyncio.create_task(said(server, b"POST /post HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"))
        assert (await said(server, b"GET / HTTP/1.1\r\n\r\n"))[1] == b"GET / - "
        for one in (slow, body):
            with contextlib.suppress(ConnectionResetError):
                assert await one == (b"", b"")
        await until(lambda: not server.connections)


async def test_a_reader_that_does_not_read_is_left() -> None:
    """After some seconds. Otherwise it would keep its answer in memory for ever."""

    async def much(request: Request) -> Answer:
        return Answer(200, PLAIN, b"x" * 20_000_000)

    async with server_of(timeout=0.3, much=Route(much)) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /much HTTP/1.1\r\n\r\n")
        await until(lambda: bool(server.connections))
        await until(lambda: not server.connections)
        writer.close()


async def test_an_answer_that_takes_too_long_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    """503 and 500; the error is logged, and not shown to the client."""

    async def never(request: Request) -> Answer:
        await asyncio.sleep(3_600)
        raise AssertionError

    async def broken(request: Request) -> Answer:
        raise ValueError("a secret")

    async with server_of(never=Route(never, timeout=0.1), much=Route(broken, timeout=None)) as server:
        assert await said(server, b"GET /never HTTP/1.1\r\n\r\n") == (
            (await said(server, b"HEAD /never HTTP/1.1\r\n\r\n"))[0],
            b"no answer within 0.1 s\n",
        )
        with caplog.at_level(logging.ERROR):
            head, body = await said(server, b"GET /much HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in body
    assert [record.__dict__["action"] for record in caplog.records] == ["request_failed"]


async def test_it_ends_with_its_block() -> None:
    """Although a client is connected and an answer is not there yet."""
    begun = asyncio.Event()

    async def never(request: Request) -> Answer:
        begun.set()
        await asyncio.sleep(3_600)
        raise AssertionError

    async with asyncio.timeout(20):
        async with server_of(never=Route(never, timeout=None)) as server:
            _, idle = await asyncio.open_connection("127.0.0.1", server.port)
            _, asking = await asyncio.open_connection("127.0.0.1", server.port)
            asking.write(b"GET /never HTTP/1.1\r\n\r\n")
            await begun.wait()
        assert not server.connections
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        idle.close()
        asking.close()


@pytest.mark.parametrize("turns", [3, 4, 5])  # earlier, asyncio itself loses it
async def test_a_connection_that_comes_at_the_end_does_not_outlive_it(turns: int) -> None:
    """Accepted, and its task has not begun: it is closed, and not waited for."""
    async with asyncio.timeout(5):
        async with server_of() as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\n")  # it would wait for the rest
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.__aexit__(None, None, None)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not server.connections


async def test_too_many_connections_are_closed() -> None:
    """At once; when some have gone, others are served again."""
    async with server_of() as server:
        idle = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(100)]
        await until(lambda: len(server.connections) == 100)
        with contextlib.suppress(ConnectionResetError):
            assert await said(server, b"GET / HTTP/1.1\r\n\r\n") == (b"", b"")
        for one in idle:
            one.close()
        await until(lambda: not server.connections)
        assert (await said(server, b"GET / HTTP/1.1\r\n\r\n"))[1] == b"GET / - "
