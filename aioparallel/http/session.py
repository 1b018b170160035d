"""The requests of one record or item, from the limits of their hosts to the meaning of each status."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from aioparallel.engine.outcomes.gates import Gate, NoRoom, Refused, give_back
from aioparallel.handlers.binding import HandlerContext
from aioparallel.http.bodies import ACCEPTED
from aioparallel.http.clients import ReadLimits, opened
from aioparallel.http.hosts import Hosts
from aioparallel.http.idempotency import HEADER, key_of
from aioparallel.http.requests import Request, SendRequest, check_headers, has_header, origin_of, shown
from aioparallel.http.responses import Response, retry_after
from aioparallel.http.sharing import Flight, Flights, ResponseCache, identity_of
from aioparallel.http.statuses import IF_TOLD, IF_TOLD_ELSE_REJECT, table_of
from aioparallel.records.errors import BadStatus, InvalidOutput, Reject, RequestTimeout
from aioparallel.records.record import Record
from aioparallel.records.user_errors import refuse_coroutine
from aioparallel.records.wording import kind_of

if TYPE_CHECKING:
    from aioparallel.http.handler import HttpHandler

__all__ = ["HttpSession"]

# Seconds that a record waits if a busy service does not say for how long, and the part by which they vary.
_BUSY, _SPREAD = 1.0, 0.2
# Least seconds for a Retry-After: with 0 the requests would not pause at all.
_LEAST = 0.1
_VISIBLE: Final = re.compile(rb"[\x20-\x7e]+")  # other values of trace headers are ignored
_TRACED: Final = ("traceparent", "tracestate")


class HttpSession:
    """One open client and the limits of its hosts, for the length of a run. :meth:`handle` handles one record."""

    def __init__(self, of: HttpHandler[Any, Any], context: HandlerContext) -> None:
        self._of = of
        self._context = context
        self._request, self._on_response = of.request, of.on_response
        self._meanings = table_of(of.statuses)
        self._headers_of_all = dict(of.headers)
        self._names_of_all = frozenset(name.lower() for name in self._headers_of_all)
        self._base = (of.base_url or "").rstrip("/")
        self._timeout = of.timeout
        self._hosts = Hosts(min(of.max_per_host or context.max_concurrency, context.max_concurrency))
        self._flights = Flights() if of.single_flight else None
        self._cache: ResponseCache | None = None
        self._shares = of.single_flight or of.cache is not None
        self._stack = AsyncExitStack()
        self._gives_response = context.group_id is None

    async def __aenter__(self) -> Self:
        if self._of.cache is not None:
            self._cache = ResponseCache(self._of.cache, asyncio.get_running_loop().time)
        reading = ReadLimits(
            self._of.max_response_bytes, frozenset(code for code, one in self._meanings.items() if one == "done")
        )
        sender = await self._stack.enter_async_context(opened(self._of.client, self._context.max_concurrency, reading))
        if not sender.sends_accept_encoding and not has_header(self._of.headers, "accept-encoding"):
            self._headers_of_all["Accept-Encoding"] = ACCEPTED
            self._names_of_all |= {"accept-encoding"}
        self._send: SendRequest = sender.send
        if self._context.around_requests is not None:
            kept = self._names_of_all if self._of.trace else None
            self._send = self._context.around_requests(sender.send, kept)
        self._stack.callback(self._hosts.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # The common case is one coroutine: each nested one would cost time with every response.
    async def handle(self, item: Any) -> Any:
        """Send the requests for a record or item. Returns the result of ``on_response``."""
        try:
            found: Any = self._request(item)
            if hasattr(found, "__await__"):
                found = await found
            response: Response | list[Response] | None
            if not isinstance(found, Request):
                response = await self._several(item, _checked(found))
            elif self._shares:
                response = await self._shared(item, found, self._url(found))
            else:
                url = self._url(found)
                gate = self._hosts.of_url(url)
                gate.enter()
                try:
                    response = await self._send(
                        found, url, self._headers(item, found, 0), found.timeout or self._timeout
                    )
                    if self._meanings.get(response.status) != "done":
                        self._raise_meaning(response, url, gate)
                finally:
                    gate.leave()
            if self._on_response is None:
                return response if self._gives_response else None
            value = self._on_response(item, response)
            return await value if hasattr(value, "__await__") else value
        finally:
            give_back()  # a place kept for a woken record that was not used

    async def _several(self, item: Any, requests: Sequence[Request]) -> list[Response] | None:
        """Enter the gates of all hosts before the first request: a later wait would repeat the requests before it."""
        if not requests:
            return None
        targets = [(request, self._url(request)) for request in requests]
        gates = self._hosts.enter(dict.fromkeys(origin_of(url) for _, url in targets))
        try:
            by_host = {gate.name: gate for gate in gates}
            responses: list[Response] = []
            for index, (request, url) in enumerate(targets):
                gate = by_host[origin_of(url)]
                if gate.opens_in > 0:  # another record's response has requested a delay meanwhile
                    raise NoRoom(gate)
                responses.append(await self._one(item, request, url, index, gate))
            return responses
        finally:
            for gate in gates:
                gate.leave()

    async def _shared(self, item: Any, request: Request, url: str) -> Response:
        """Take a cached response, join an equal request in flight, or send this one."""
        identity = identity_of(request, url)
        if identity is not None and self._cache is not None:
            cached = self._cache.get(identity)
            if cached is not None:
                give_back()
                return cached
        flight = None if identity is None or self._flights is None else self._flights.get(identity)
        if flight is not None:
            give_back()
            return await self._join(flight, request, url)
        gate = self._hosts.of_url(url)
        gate.enter()
        if identity is not None and self._flights is not None:
            send = partial(self._cached, identity, item, request, url, gate)
            return await self._flights.begin(identity, send, gate.leave).response()
        try:
            return await self._cached(identity, item, request, url, gate)
        finally:
            gate.leave()

    async def _join(self, flight: Flight, request: Request, url: str) -> Response:
        """The response to an equal request in flight, within the timeout of this one."""
        seconds = request.timeout or self._timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                return await flight.response()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RequestTimeout(f"{request.method} {shown(url)}", seconds) from error

    async def _cached(self, identity: Hashable | None, item: Any, request: Request, url: str, gate: Gate) -> Response:
        response = await self._one(item, request, url, 0, gate)
        if identity is not None and self._cache is not None:
            self._cache.put(identity, response)
        return response

    async def _one(self, item: Any, request: Request, url: str, index: int, gate: Gate) -> Response:
        """Send a request. Raises the error that its status means, unless that is "done"."""
        response = await self._send(request, url, self._headers(item, request, index), request.timeout or self._timeout)
        if self._meanings.get(response.status) != "done":
            self._raise_meaning(response, url, gate)
        return response

    def _raise_meaning(self, response: Response, url: str, gate: Gate) -> NoReturn:
        status = response.status
        meaning = self._meanings.get(status, "retry")
        asked = f"{response.request.method} {shown(url)}"
        if meaning in ("wait", IF_TOLD, IF_TOLD_ELSE_REJECT):
            seconds = retry_after(response.headers)
            if seconds is not None:
                gate.refused()
                gate.shut(min(max(seconds, _LEAST), self._of.longest_wait))
                raise NoRoom(gate)
            if meaning == "wait":
                gate.refused()
                raise Refused(gate, _BUSY * (1 + _SPREAD * random.random()), f"{asked}: answered {status}")
        if meaning in ("reject", IF_TOLD_ELSE_REJECT):
            raise Reject(f"{asked}: answered {status}")
        raise BadStatus(asked, status)

    def _url(self, request: Request) -> str:
        return self._base + request.url if self._base and request.url.startswith("/") else request.url

    def _headers(self, item: Any, request: Request, index: int) -> Mapping[str, str]:
        of = self._of
        headers: Mapping[str, str] = self._headers_of_all
        if request.headers:
            headers = self._merged(request.headers) if headers else request.headers
        if of.trace and type(item) is Record and item.headers:
            headers = _traced(item, headers)
        if request.method == "POST" and of.idempotency_key is not None and not has_header(headers, "idempotency-key"):
            headers = {**headers, HEADER: self._key(item, index)}
        return headers

    def _merged(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A request's headers replace the handler's of the same name in any case (RFC 9110, 5.1)."""
        given = {name.lower() for name in headers}
        if self._names_of_all.isdisjoint(given):
            return {**self._headers_of_all, **headers}
        return {name: one for name, one in self._headers_of_all.items() if name.lower() not in given} | dict(headers)

    def _key(self, item: Any, index: int) -> str:
        key = self._of.idempotency_key
        if callable(key):
            found = key(item, index)
            refuse_coroutine(found)
            check_headers("idempotency_key", {HEADER: found})
            return found
        assert self._context.group_id is not None
        return key_of(item, self._context.group_id, index)


def _traced(record: Record[Any, Any], headers: Mapping[str, str]) -> Mapping[str, str]:
    given = {name.lower() for name in headers}
    found = {
        name.lower(): value.decode()
        for name, value in record.headers
        if value is not None and name.lower() in _TRACED and name.lower() not in given and _VISIBLE.fullmatch(value)
    }
    return {**headers, **found} if found else headers


def _checked(found: object) -> Sequence[Request]:
    if found is None:
        return ()
    if isinstance(found, list | tuple) and all(isinstance(one, Request) for one in found):
        return found
    raise InvalidOutput(
        f"the function request of http_handler returned {kind_of(found)}: it must be a Request, a list of them, or None"
    )
