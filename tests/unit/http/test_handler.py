"""``http_handler``: a request for each record, and what becomes of the answers. Against a real service, by both
clients."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import httpx
import pytest
from aiohttp import web

from aioparallel import ConfigurationError, ConsumerStateError, Record, Reject, RetryPolicy, parallel_map
from aioparallel.errors import InvalidOutput
from aioparallel.http import (
    BadStatus,
    Cache,
    Request,
    RequestFailed,
    RequestTimeout,
    Response,
    http_handler,
)
from tests.support.http.service import Answer, Service
from tests.support.waiting import SLACK, until

Kind = Literal["httpx", "aiohttp"]
both = pytest.mark.parametrize("client", ["httpx", "aiohttp"])


def get(number: int) -> Request:
    """Of an item."""
    return Request("GET", f"/items/{number}")


def status_of(_item: object, response: Response) -> int:
    """Of its answer."""
    return response.status


@both
async def test_a_request_for_each_item(client: Kind, served: Service) -> None:
    """Sent once, and the answer is what comes out."""
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None)
    found = [o.result() async for o in parallel_map(handler, range(50), in_order=True)]
    assert [response.json() for response in found] == [{"path": f"/items/{number}"} for number in range(50)]
    assert {response.status for response in found} == {200}
    assert len(served.paths) == sum(served.paths.values()) == 50


@both
async def test_all_parts_of_a_request(client: Kind, served: Service) -> None:
    """Query, headers and body arrive as they were given; the handler's headers behind the request's own."""

    def ask(_item: int) -> Request:
        return Request(
            "PUT",
            "/x?a=1",
            params={"b": "ü &", "c": 2, "d": True, "e": None},
            headers={"X-One": "own"},
            json={"name": "Ünal"},
        )

    headers = {"X-One": "handler's", "X-Two": "2"}
    handler = http_handler(ask, client=client, base_url=served.url + "/", headers=headers, idempotency_key=None)
    async with handler.alone() as handle:
        await handle(1)
    (asked,) = served.asked
    assert asked.method == "PUT"
    assert dict(asked.query) == {"a": "1", "b": "ü &", "c": "2", "d": "true"}
    assert (asked.headers["X-One"], asked.headers["X-Two"]) == ("own", "2")
    assert asked.headers["Content-Type"] == "application/json"
    assert json.loads(served.bodies[0]) == {"name": "Ünal"}


@both
async def test_what_is_done_with_the_answer(client: Kind, served: Service) -> None:
    """``on_response`` gets the record and the response; async, or not; what it raises is the handler's failure."""

    async def later(item: int, response: Response) -> tuple[int, int]:
        await asyncio.sleep(0)
        return item, response.status

    def broken(_item: int, _response: Response) -> None:
        raise KeyError("name")

    async with http_handler(get, later, client=client, base_url=served.url).alone() as handle:
        assert await handle(3) == (3, 200)
    async with http_handler(get, broken, client=client, base_url=served.url).alone() as broken_handle:
        with pytest.raises(KeyError):
            await broken_handle(3)


@both
@pytest.mark.parametrize(
    ("status", "raised"),
    [(500, BadStatus), (502, BadStatus), (503, BadStatus), (404, Reject), (304, Reject), (429, None)],
)
async def test_what_statuses_mean(client: Kind, status: int, raised: type[Exception] | None, served: Service) -> None:
    """5xx has failed, 429 asks for patience, the rest will never succeed; and each can mean something else."""
    served.answer = lambda _: web.Response(status=status)
    async with http_handler(get, client=client, base_url=served.url).alone() as handle:
        with pytest.raises(Exception, match=str(status)) as found:
            await handle(1)
    assert type(found.value).__name__ == (raised.__name__ if raised else "RetryLater")
    assert f"GET {served.url}/items/1: answered {status}" in str(found.value)
    handler = http_handler(get, status_of, client=client, base_url=served.url, statuses={range(300, 600): "done"})
    async with handler.alone() as handle_all:
        assert await handle_all(1) == status


@both
async def test_trouble_with_the_connection(client: Kind, served: Service) -> None:
    """Nobody listens, or the answer breaks off, or comes too late: failures that say what was asked, without its
    query, and how it went; the client goes on."""

    def ask(item: str) -> Request:
        url = "http://127.0.0.1:1/x" if item == "nobody" else f"{served.url}/{item}"
        return Request("GET", url, params={"token": "secret"}, timeout=0.2 if item == "late" else None)

    def answer(request: web.BaseRequest) -> Answer:
        if request.path == "/breaks":
            assert request.transport is not None
            request.transport.abort()
        return 30.0 if request.path == "/late" else None

    served.answer = answer
    async with http_handler(ask, client=client, timeout=20).alone() as handle:
        with pytest.raises(RequestFailed, match=r"GET http://127.0.0.1:1/x: .*Connect call failed") as nobody:
            await handle("nobody")
        with pytest.raises(RequestFailed, match="/breaks: ") as breaks:
            await handle("breaks")
        with pytest.raises(RequestTimeout, match=re.escape("/late: no answer within 0.2 s")) as late:
            await handle("late")
        await handle("fine")
    assert not any("secret" in str(one.value) for one in (nobody, breaks, late))
    await until(lambda: served.cancelled or not served.now)


@both
async def test_attempts_by_the_failure_policy(client: Kind, served: Service) -> None:
    """A service that fails twice is asked three times."""
    served.answer = lambda request: web.Response(status=500) if served.paths[request.path] < 3 else None
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None)
    retry = RetryPolicy(first_delay=0.001, max_attempts=3)
    assert {o.attempts async for o in parallel_map(handler, range(20), retry=retry)} == {3}


@both
async def test_a_host_that_asks_for_patience_gets_it(client: Kind, served: Service) -> None:
    """Retry-After: nobody asks that host before its time, no attempt is counted, another host is asked all the time."""
    loop = asyncio.get_running_loop()
    times: dict[str, list[float]] = {"127.0.0.1": [], "localhost": []}

    def answer(request: web.BaseRequest) -> Answer:
        host = request.host.partition(":")[0]
        times[host].append(loop.time())
        if host == "127.0.0.1" and len(times[host]) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return 0.05

    served.answer = answer
    other = served.url.replace("127.0.0.1", "localhost")

    def ask(number: int) -> Request:
        return Request("GET", f"{served.url if number % 2 else other}/{number}")

    handler = http_handler(ask, client=client, idempotency_key=None, max_per_host=1)
    outcomes = [o async for o in parallel_map(handler, range(20), max_concurrency=2)]
    assert {(o.attempts, o.result().status) for o in outcomes} == {(1, 200)}
    throttled, free = times["127.0.0.1"], times["localhost"]
    assert throttled[1] - throttled[0] >= 0.99
    assert len([one for one in free if one < throttled[1]]) > 5


@both
async def test_so_many_at_each_host(client: Kind, served: Service) -> None:
    """``max_per_host``."""
    served.answer = lambda _: 0.005
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None, max_per_host=3)
    assert len([o async for o in parallel_map(handler, range(60), max_concurrency=20)]) == 60
    assert served.most == 3


@both
async def test_as_many_connections_as_handlers(client: Kind, served: Service) -> None:
    """All handlers that may run at once are under way at once, each with a connection that is kept."""
    served.answer = lambda _: 0.3
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None)
    assert len([o async for o in parallel_map(handler, range(300), max_concurrency=150)]) == 300
    assert served.most == 150
    assert len({request.transport for request in served.asked} - {None}) <= 150


@both
async def test_cancelled_requests_leave_the_client_whole(client: Kind, served: Service) -> None:
    """After a thousand cancellations it works as before, with all its connections."""
    slow = True
    served.answer = lambda _: 30.0 if slow else 0.05
    async with http_handler(get, client=client, base_url=served.url).alone(max_concurrency=20) as handle:
        for _ in range(50):
            tasks = [asyncio.ensure_future(handle(number)) for number in range(20)]
            await asyncio.sleep(0.002)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        slow = False
        await until(lambda: not served.now)
        served.most = 0
        await asyncio.gather(*(handle(number) for number in range(20)))
        assert served.most == 20


async def test_clients_of_the_users_own(served: Service) -> None:
    """Made for the concurrency, opened, and closed with what runs it; what is none is refused."""
    sizes: list[int] = []
    closed: list[object] = []

    @asynccontextmanager
    async def mine(connections: int) -> AsyncIterator[httpx.AsyncClient]:
        sizes.append(connections)
        async with httpx.AsyncClient(headers={"X-Mine": "1"}) as made:
            yield made
        closed.append(made)

    handler = http_handler(get, client=mine, base_url=served.url, idempotency_key=None)
    assert len([o async for o in parallel_map(handler, range(5), max_concurrency=7)]) == 5
    assert sizes == [7]
    assert len(closed) == 1
    assert served.asked[0].headers["X-Mine"] == "1"

    @asynccontextmanager
    async def wrong(_connections: int) -> AsyncIterator[Any]:
        yield object()

    with pytest.raises(ConfigurationError, match="it must be httpx"):
        [o async for o in parallel_map(http_handler(get, client=wrong, idempotency_key=None), range(3))]
    async with http_handler(get, client=lambda _: aiohttp.ClientSession(), base_url=served.url).alone() as handle:
        await handle(1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"client": "requests"}, "client='requests'"),
        ({"base_url": "customers"}, "must be as"),
        ({"base_url": "http://x/?a=b"}, "has a query"),
        ({"timeout": 0}, "timeout=0"),
        ({"max_per_host": 0}, "max_per_host=0"),
        ({"statuses": {99: "done"}}, "from 100 to 599"),
        ({"statuses": {404: "fine"}}, "must be one of"),
        ({"headers": {"X": 1}}, "must be a text"),
        ({"headers": {"Content-Length": "1"}}, "is made by the client"),
        ({"idempotency_key": "always"}, "must be a function"),
        ({"cache": 60}, "Cache"),
        ({"on_response": lambda record: None}, "must take"),
    ],
)
def test_what_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    """By name, before anything is asked."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        http_handler(get, **options)


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        (lambda: Request("FETCH", "http://x"), "must be one of"),
        (lambda: Request("GET", ""), "must be a text"),
        (lambda: Request("POST", "http://x", json=object()), "cannot be written as JSON"),
        (lambda: Request("POST", "http://x", json=1, content=b"1"), "cannot stand beside json"),
    ],
)
def test_requests_that_are_none(request_of: Any, says: str) -> None:
    """What is wrong with it is said where it is made."""
    with pytest.raises(ConfigurationError, match=says):
        request_of()


async def test_what_a_request_function_must_give(served: Service) -> None:
    """A request, a list, or nothing; with a host."""

    def any_item(item: Any) -> Any:
        return item

    async with http_handler(any_item).alone() as handle:
        with pytest.raises(InvalidOutput, match="must be a Request"):
            await handle("GET http://x")
        for url in ("/only/a/path", "ftp://host/x", "http:///x"):
            with pytest.raises(ConfigurationError, match="Request url"):
                await handle(Request("GET", url))


async def test_it_runs_where_it_was_placed() -> None:
    """Called by itself it says what it is for; items have no place in Kafka, so a key for them must be given."""
    with pytest.raises(ConsumerStateError, match=r"consumer\.run\(\)"):
        await http_handler(get)(1)
    with pytest.raises(ConfigurationError, match="items have not: give a function"):
        parallel_map(http_handler(get), range(3))


async def test_the_same_key_for_the_same_record(served: Service) -> None:
    """Each POST has one: the same at each attempt, another for another record, group and request."""

    def post(_record: Record) -> list[Request]:
        return [Request("POST", "/a", json={}), Request("POST", "/b", headers={"idempotency-key": "mine"}), get(1)]

    handler = http_handler(post, base_url=served.url)
    for group, offset in (("g", 7), ("g", 7), ("g", 8), ("h", 7)):
        async with handler.alone(group_id=group) as handle:
            await handle(Record("orders", 3, offset))
    keys = [request.headers["Idempotency-Key"] for request in served.asked if request.path == "/a"]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", key) for key in keys)
    assert {r.headers["Idempotency-Key"] for r in served.asked if r.path == "/b"} == {"mine"}
    assert all("Idempotency-Key" not in r.headers for r in served.asked if r.path.startswith("/items"))


@pytest.mark.parametrize("trace", [True, False])
async def test_traces_go_on(trace: bool, served: Service) -> None:
    """``traceparent`` and ``tracestate`` of the record are the request's, unless it has its own."""
    record = Record("t", 0, 0, headers=(("traceparent", b"00-abc-def-01"), ("TraceState", b"a=1"), ("other", b"x")))

    def ask(_record: Record) -> Request:
        return get(1)

    async with http_handler(ask, base_url=served.url, trace=trace).alone() as handle:
        await handle(record)
    headers = served.asked[0].headers
    assert headers.get("traceparent") == ("00-abc-def-01" if trace else None)
    assert headers.get("tracestate") == ("a=1" if trace else None)
    assert "other" not in headers


async def test_a_deadline_is_the_requests_alone(served: Service) -> None:
    """A cancellation from outside stays one, also where the deadline passes at the same time."""
    served.answer = lambda _: 30.0
    async with http_handler(get, base_url=served.url, timeout=0.1).alone() as handle:
        task = asyncio.ensure_future(handle(1))
        await until(lambda: served.now)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeout):
            await handle(2)
        assert asyncio.get_running_loop().time() - began < SLACK
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await handle(3)


async def test_trouble_is_told_in_a_line(served: Service, caplog: pytest.LogCaptureFixture) -> None:
    """The message says which request, and how it went; a traceback of the client's own code says no more."""
    served.answer = lambda _: web.Response(status=500)
    retry = RetryPolicy(first_delay=0.001, max_attempts=2)
    for url in (served.url, "http://127.0.0.1:1"):
        handler = http_handler(get, base_url=url, idempotency_key=None)
        async for outcome in parallel_map(handler, range(1), retry=retry, on_error="emit"):
            assert outcome.error is not None
    lines = [one for one in caplog.records if "failed" in one.getMessage()]
    assert lines
    assert not any(one.exc_info for one in lines)


def test_a_client_function_takes_the_number_of_connections() -> None:
    """That is said at once."""
    with pytest.raises(ConfigurationError, match=r"client.*the number of connections"):
        http_handler(get, client=lambda: None, idempotency_key=None)  # type: ignore[misc, arg-type]


def same(_: object) -> Request:
    """Whatever it is asked about."""
    return Request("GET", "/same")


@both
async def test_a_place_is_kept_for_a_slow_request_function_and_for_no_other(client: Kind, served: Service) -> None:
    """One host, one request at a time. Who is woken and takes more than a look (a second) to say what it asks finds its
    place; who finds its answer kept gives its place back."""
    served.answer = lambda _: 0.02

    async def slow(number: int) -> Request:
        await asyncio.sleep(1.2)
        return Request("GET", f"/{number}")

    loop = asyncio.get_running_loop()
    began = loop.time()
    handler = http_handler(slow, client=client, base_url=served.url, max_per_host=1, idempotency_key=None)
    assert len([o async for o in parallel_map(handler, range(4), max_concurrency=4)]) == 4
    assert loop.time() - began < 12
    began = loop.time()

    def few(number: int) -> Request:
        return Request("GET", f"/{number % 5}")

    cached = http_handler(
        few,
        client=client,
        base_url=served.url,
        max_per_host=1,
        cache=Cache(seconds=60),
        idempotency_key=None,
    )
    assert len([o async for o in parallel_map(cached, range(100), max_concurrency=20)]) == 100
    assert loop.time() - began < 5


@both
async def test_answers_leave_no_cookies(client: Kind, served: Service) -> None:
    """What is set for one record is nothing for another."""

    def answer(_: web.BaseRequest) -> Answer:
        response = web.Response()
        response.set_cookie("session", "of-anna")
        return response

    served.answer = answer
    async with http_handler(get, client=client, base_url=served.url).alone() as handle:
        for number in range(3):
            await handle(number)
    assert not any("Cookie" in request.headers for request in served.asked)


async def test_headers_that_are_none_are_not_passed_on(served: Service) -> None:
    """A trace that no header can hold keeps nobody from asking."""
    headers = (("traceparent", b"00-x\r\nX: y"), ("tracestate", "ä".encode()))
    async with http_handler(same, base_url=served.url).alone() as handle:
        await handle(Record("t", 0, 0, None, None, headers))
        await handle(Record("t", 0, 1, None, None, (("traceparent", b"00-ab-cd-01"),)))
    assert [one.headers.get("traceparent") for one in served.asked] == [None, "00-ab-cd-01"]


@both
async def test_texts_of_any_kind(client: Kind, served: Service) -> None:
    """Other letters in headers are sent as UTF-8; an address that cannot be asked fails as a request, and what is no
    text at all is refused when it is made."""
    url = {"ok": f"{served.url}/ok", "host": "http://\u00ad.example/", "long": f"http://{'a' * 70}.example/"}

    def ask(which: str) -> Request:
        return Request("GET", url[which], headers={"X-Name": "Zoë"})

    async with http_handler(ask, client=client).alone() as handle:
        await handle("ok")
        for which in ("host", "long"):
            with pytest.raises(RequestFailed):
                await handle(which)
    assert served.asked[0].headers["X-Name"].encode("utf-8", "surrogateescape").decode() == "Zoë"
    for wrong in ({"X-Nämë": "v"}, {"a b": "v"}, {"": "v"}, {"a": "\udc80"}):
        with pytest.raises(ConfigurationError, match="Request headers"):
            Request("GET", "/", headers=wrong)
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        Request("GET", "https://a/\ud800")
