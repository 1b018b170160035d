"""``http_handler``: a request for each record, and what becomes of the answers. Against a real service, by both
clients."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from aioparallel import ConfigurationError, ConsumerStateError, Record, Reject, RetryLater, RetryPolicy, parallel_map
from aioparallel.http import (
    BadStatus,
    Request,
    RequestFailed,
    RequestTimeout,
    Response,
    http_handler,
)
from aioparallel.records.errors import InvalidOutput
from tests.support.http.asking import Kind, both, get, same, status_of
from tests.support.http.service import Answer, Service
from tests.support.waiting import DEADLINE, SLACK, until


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
    assert isinstance(found.value, raised or RetryLater)
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
async def test_as_many_connections_as_handlers(client: Kind, served: Service) -> None:
    """All handlers that may run at once are under way at once, each with a connection that is kept."""
    all_there = asyncio.Event()

    def answer(_: web.BaseRequest) -> Answer:
        if served.now == 150:
            all_there.set()
        return all_there

    served.answer = answer
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None, timeout=DEADLINE)
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
        ({"base_url": "customers"}, "must be like"),
        ({"base_url": "http://x/?a=b"}, "has a query"),
        ({"timeout": 0}, "timeout=0"),
        ({"max_per_host": 0}, "max_per_host=0"),
        ({"statuses": {99: "done"}}, "from 100 to 599"),
        ({"statuses": {404: "fine"}}, "must be one of"),
        ({"headers": {"X": 1}}, "must be a text"),
        ({"headers": {"Content-Length": "1"}}, "is made by the client"),
        ({"idempotency_key": "always"}, "must be a plain function"),
        ({"cache": 60}, "Cache"),
        ({"on_response": lambda record: None}, "must take"),
    ],
)
def test_what_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    """By name, before anything is asked."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        http_handler(get, **options)


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
@pytest.mark.parametrize(
    "host", ["a..example", "." * 3, "a" * 70 + ".example", "ü" * 70 + ".example", "xn--ü", "xn--zzzzzz99999.example"]
)
async def test_a_host_of_which_no_name_can_be_made(client: Kind, host: str) -> None:
    """A failure as any other of a connection, with parameters too."""

    def ask(params: dict[str, int] | None) -> Request:
        return Request("GET", f"http://{host}/", params=params)

    async with http_handler(ask, client=client).alone() as handle:
        for params in (None, {"a": 1}):
            with pytest.raises(RequestFailed, match="GET http://"):
                await handle(params)


@both
async def test_an_address_with_a_user(client: Kind, served: Service) -> None:
    """He goes into a header; more is in no message."""
    url = served.url.replace("://", "://me:p%40ss@")
    async with http_handler(get, client=client, base_url=url).alone() as handle:
        await handle(1)
    assert served.asked[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()


@both
async def test_a_key_that_is_no_header(client: Kind, served: Service) -> None:
    """Said of the function that has made it, and nothing is sent."""

    def post(_item: object) -> Request:
        return Request("POST", "/")

    handler = http_handler(post, client=client, base_url=served.url, idempotency_key=key_of)
    async with handler.alone() as handle:
        for item in ("ü", 7):
            with pytest.raises(ConfigurationError, match="idempotency_key"):
                await handle(item)
    assert not served.asked


def key_of(item: Any, _index: int) -> Any:
    """Whatever it is."""
    return item
