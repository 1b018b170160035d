"""``http_handler``: a handler that sends requests to a service for each record, and its options."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from aioparallel.config.callables import check_arguments, check_plain
from aioparallel.config.handling import check_choice, check_count, check_time
from aioparallel.config.option_docs import takes_options
from aioparallel.handlers.binding import BindableHandler, BoundHandler, HandlerContext
from aioparallel.handlers.resources import resource
from aioparallel.http.clients import Client, check_client
from aioparallel.http.requests import Request, check_headers, check_url, origin_of
from aioparallel.http.session import HttpSession
from aioparallel.http.sharing import Cache
from aioparallel.http.statuses import Statuses, check_statuses
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.wording import kind_of

__all__ = ["HttpHandler", "http_handler"]

T = TypeVar("T")
R = TypeVar("R")

Requests = Request | Sequence[Request] | None
"""The requests for one record: none, one, or several to send one after the other."""
IdempotencyKey = Callable[[Any, int], str]

# Header fields of the connection, or made from the request.
_NOT_GIVEN: Final = ("content-length", "transfer-encoding", "host", "connection")


@dataclass(frozen=True, eq=False, repr=False)
class HttpHandler(BindableHandler, Generic[T, R]):
    """The result of :func:`http_handler`. For ``consumer.run()``, ``parallel_map()`` and the Spark operator."""

    request: Callable[[T], Requests | Awaitable[Requests]]
    on_response: Callable[[T, Any], R | Awaitable[R]] | None = None
    client: Client = "httpx"
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 10.0
    max_per_host: int | None = None
    statuses: Statuses = field(default_factory=dict)
    longest_wait: float = 300.0
    max_response_bytes: int = 16 * 1024 * 1024
    idempotency_key: IdempotencyKey | Literal["record"] | None = "record"
    trace: bool = True
    single_flight: bool = False
    cache: Cache | None = None

    def __post_init__(self) -> None:
        _check_function("request", self.request, "the record, or the item", 1)
        if self.on_response is not None:
            _check_function("on_response", self.on_response, "the record, or the item, and the response", 2)
        check_client(self.client)
        if self.base_url is not None:
            _check_base_url(self.base_url)
        _check_headers(self.headers)
        check_time("http_handler timeout", self.timeout)
        check_time("http_handler longest_wait", self.longest_wait)
        check_count("http_handler max_response_bytes", self.max_response_bytes)
        if self.max_per_host is not None:
            check_count("http_handler max_per_host", self.max_per_host)
        check_statuses(self.statuses)
        key = self.idempotency_key
        if key is not None and key != "record":
            wanted = "the record, or the item, and the index of the request"
            check_plain(key, "http_handler idempotency_key", wanted)
            _check_function("idempotency_key", key, wanted, 2)
        check_choice("http_handler trace", self.trace, (True, False))
        check_choice("http_handler single_flight", self.single_flight, (True, False))
        if self.cache is not None and not isinstance(self.cache, Cache):
            raise ConfigurationError("http_handler cache", self.cache, "must be None, or a Cache(seconds=...)")

    def bind(self, context: HandlerContext, name: str) -> BoundHandler:
        """Bind the handler to what runs it. Raises ConfigurationError."""
        if context.group_id is None and self.idempotency_key == "record":
            raise ConfigurationError(
                "http_handler idempotency_key",
                self.idempotency_key,
                "is made of a record's topic, partition and offset, which items have not: give a function of the item "
                "and the index of the request, or None if a POST may be repeated or is never sent",
            )
        name = f"aioparallel.http of {name}"
        return BoundHandler(_SessionHandler(name), {name: partial(HttpSession, self, context)})

    @asynccontextmanager
    async def alone(
        self, *, max_concurrency: int = 100, group_id: str = "test"
    ) -> AsyncIterator[Callable[[T], Awaitable[R]]]:
        """The handler without a consumer, for tests: ``async with handler.alone() as handle: await handle(x)``. A host
        at its limit raises RetryLater there."""
        async with HttpSession(self, HandlerContext(max_concurrency, group_id)) as session:
            yield session.handle

    async def __call__(self, item: T) -> R:
        """Raises ConsumerStateError: only what runs the handler can open its client."""
        raise ConsumerStateError(
            "http_handler(...) opens its client with what runs it: give it to consumer.run() or parallel_map() as it "
            "is, and put code before and after the request into request, on_response or middleware"
        )

    def __repr__(self) -> str:
        return f"<http_handler of {getattr(self.request, '__name__', self.request)!s}>"


# -- Written by `make docs` from the dataclass above: do not edit ---------------------------------------


class HttpFields(TypedDict, total=False):
    """The keywords of http_handler."""

    client: Client
    base_url: str | None
    headers: Mapping[str, str]
    timeout: float
    max_per_host: int | None
    statuses: Statuses
    longest_wait: float
    max_response_bytes: int
    idempotency_key: IdempotencyKey | Literal["record"] | None
    trace: bool
    single_flight: bool
    cache: Cache | None


# -- Written by hand again ------------------------------------------------------------------------------


@overload
def http_handler(
    request: Callable[[T], Requests | Awaitable[Requests]], on_response: None = None, **options: Unpack[HttpFields]
) -> HttpHandler[T, Any]: ...
@overload
def http_handler(
    request: Callable[[T], Requests | Awaitable[Requests]],
    on_response: Callable[[T, Any], Awaitable[R]],
    **options: Unpack[HttpFields],
) -> HttpHandler[T, R]: ...
@overload
def http_handler(
    request: Callable[[T], Requests | Awaitable[Requests]],
    on_response: Callable[[T, Any], R],
    **options: Unpack[HttpFields],
) -> HttpHandler[T, R]: ...
@takes_options(HttpHandler)
def http_handler(
    request: Callable[[T], Requests | Awaitable[Requests]],
    on_response: Callable[[T, Any], Any] | None = None,
    **options: Unpack[HttpFields],
) -> HttpHandler[T, Any]:
    """Make a handler that sends requests for each record or item, and passes the response to your function.

    ``await consumer.run(http_handler(ask, enriched, base_url="https://customers.example"))``; ``docs/http.md`` has a
    program. Each run opens one client with ``max_concurrency`` connections and closes it at its end. ``parallel_map``
    and the Spark operator take the handler as well.

    ``request``: a function of the record or item that returns a :class:`Request`, a list of them to send one after the
    other, or None or an empty list to send none. May be ``async``. It is called again for each attempt.
    ``on_response``: a function of the record or item and the :class:`Response` (a list of them for a list of requests;
    None if none was sent). Returns what a handler returns, :class:`~aioparallel.Outgoing` for example. May be
    ``async``. Its errors are the handler's failures. Without it a consumer only checks the status, and
    ``parallel_map`` yields the response.
    ``client``: ``"httpx"``, over aiohttp's connections; ``"aiohttp"``, which takes half the time; or a function of the
    number of connections that makes an ``httpx.AsyncClient`` or an ``aiohttp.ClientSession``, for certificates, proxies
    or authentication. Redirects are followed only if such a client does so itself.
    ``base_url``: put before URLs that begin with ``/``.
    ``headers``: added to every request that does not have them.
    ``timeout``: seconds for each request, from its start to the last byte of its response.
    ``max_per_host``: most requests in flight at one host (scheme, host and port); None: ``max_concurrency``. A record
    that exceeds it waits parked until a request there ends: it holds no worker and counts no attempt.
    ``statuses``: meanings of statuses that replace the defaults. 2xx is ``"done"``. 429, and 503 and 413 with
    ``Retry-After``, are ``"wait"``: no request goes to that host before the time it names, and no attempt is counted; a
    429 that names none delays only its own record, by 1 s. Other 5xx, 408, 421, 425 and failed connections are
    ``"retry"``. All others are ``"reject"``.
    ``longest_wait``: seconds; a longer ``Retry-After`` is shortened to it.
    ``max_response_bytes``: most bytes of a response, decoded. A larger one raises RequestFailed and is not read to its
    end. 16 MiB.
    ``idempotency_key``: the header ``Idempotency-Key`` of each POST that has none. ``"record"``: a UUID of the group,
    the record's first topic, partition and offset, and the index of the request, the same at each attempt, in retry
    topics and after a replay. Or a function of the record or item and the index. None: no header. For items the
    function must be given, or None.
    ``trace``: pass on ``traceparent`` and ``tracestate`` of the record's headers (W3C Trace Context).
    ``single_flight``: send one of several equal GETs or HEADs in flight, and share its response. Requests in lists are
    always sent.
    ``cache``: keep responses to GETs and HEADs for a while, except those in lists; None: no cache.

    Raises ConfigurationError for a wrong option.
    """
    return HttpHandler(request, on_response, **options)


class _SessionHandler:
    """The handler of a run, which takes its session from the run's resources."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, item: Any) -> Any:
        return await resource(self._name, HttpSession).handle(item)

    def __repr__(self) -> str:
        return f"<{self._name}>"


def _check_function(name: str, function: object, wanted: str, arguments: int) -> None:
    if not callable(function):
        raise ConfigurationError(f"http_handler {name}", function, f"must be a function of {wanted}")
    check_arguments(function, f"http_handler {name}", wanted, arguments)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"http_handler {name}", function, "must return, and not yield: return a list")


def _check_base_url(base_url: object) -> None:
    if not isinstance(base_url, str):
        raise ConfigurationError("http_handler base_url", kind_of(base_url), 'must be a text like "https://host"')
    try:
        origin_of(base_url)
    except ConfigurationError as error:
        raise ConfigurationError("http_handler base_url", error.value, 'must be like "https://host/path"') from None
    check_url("http_handler base_url", base_url)
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError("http_handler base_url", "...", "has a query: give params to each Request")


def _check_headers(headers: Mapping[str, str]) -> None:
    given: object = headers
    if not isinstance(given, Mapping):
        raise ConfigurationError("http_handler headers", kind_of(given), "must be a mapping of texts")
    check_headers("http_handler", headers)
    for name in headers:
        if name.lower() in _NOT_GIVEN:
            raise ConfigurationError(f"http_handler headers[{name!r}]", "...", "is made by the client: leave it out")
