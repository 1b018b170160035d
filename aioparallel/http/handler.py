"""``http_handler``: a handler that asks a service about each record, and what the user says about it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from aioparallel.binding import BindableHandler, BoundHandler, HandlerContext
from aioparallel.callables import check_arguments
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.handling import check_choice, check_count, check_time
from aioparallel.http.asking import Asking
from aioparallel.http.clients import Client, check_client
from aioparallel.http.requests import Request, check_headers, check_url, origin_of
from aioparallel.http.sharing import Cache
from aioparallel.http.statuses import Statuses, check_statuses
from aioparallel.option_docs import takes_options
from aioparallel.resources import resource
from aioparallel.wording import kind_of

__all__ = ["HttpHandler", "http_handler"]

T = TypeVar("T")
R = TypeVar("R")

Requests = Request | Sequence[Request] | None
"""What is asked about one record: nothing, one, or several one after the other."""
IdempotencyKey = Callable[[Any, int], str]

# Header fields that belong to the connection, or are made of the request.
_NOT_GIVEN: Final = ("content-length", "transfer-encoding", "host", "connection")


@dataclass(frozen=True, eq=False, repr=False)
class HttpHandler(BindableHandler, Generic[T, R]):
    """What :func:`http_handler` gives. For ``consumer.run()``, ``parallel_map()`` and the operator of Spark."""

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
            _check_function("idempotency_key", key, "the record, or the item, and the index of the request", 2)
        check_choice("http_handler trace", self.trace, (True, False))
        check_choice("http_handler single_flight", self.single_flight, (True, False))
        if self.cache is not None and not isinstance(self.cache, Cache):
            raise ConfigurationError("http_handler cache", self.cache, "must be None, or a Cache(seconds=...)")

    def bind(self, context: HandlerContext, name: str) -> BoundHandler:
        """Let the handler run in a consumer or a map. Raises ConfigurationError."""
        if context.group_id is None and self.idempotency_key == "record":
            raise ConfigurationError(
                "http_handler idempotency_key",
                self.idempotency_key,
                "is made of a record's place in Kafka, which items have not: give a function of the item and the index "
                "of the request, or None where a POST may be done twice, or there is none",
            )
        name = f"aioparallel.http of {name}"
        return BoundHandler(_OpenedHandler(name), {name: partial(self.opened, context)})

    @asynccontextmanager
    async def opened(self, context: HandlerContext) -> AsyncIterator[Asking]:
        """What runs there: a client, and what is known of its hosts."""
        asking = Asking(self, context)
        async with asking:
            yield asking

    def alone(
        self, *, max_concurrency: int = 100, group_id: str = "test"
    ) -> AbstractAsyncContextManager[Callable[[T], Awaitable[R]]]:
        """The handler without a consumer, for tests of it: ``async with handler.alone() as handle: await handle(x)``.
        A host without room raises RetryLater there."""
        return _alone(self, HandlerContext(max_concurrency, group_id))

    async def __call__(self, item: T) -> R:
        """Raises ConsumerStateError: the handler runs only where it was bound."""
        raise ConsumerStateError(
            "http_handler(...) opens its client with what runs it: give it to consumer.run(), or parallel_map(), as it "
            "is; what comes before and after it belongs into request and on_response, or into middleware"
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
    """Make a handler that sends a request for each record, or item, and does with the answer what you say.

    ``await consumer.run(http_handler(ask, enriched, base_url="https://customers.example"))``; ``docs/http.md`` has a
    program. It opens one client with the consumer, with as many connections as ``max_concurrency``, and closes it with
    it. In ``parallel_map`` and in the operator of Spark it runs as it is.

    ``request``: of a record, or an item, the :class:`Request`; or a list of them, sent one after the other; None or an
    empty list: nothing is asked. May be an ``async def`` function. It is called again for each attempt.
    ``on_response``: of the record and the :class:`Response` (a list of them for a list of requests; None where nothing
    was asked): what a handler returns, :class:`~aioparallel.Outgoing` say. May be an ``async def`` function. What it
    raises is the handler's failure. Without it a consumer is content with the status, and ``parallel_map`` gives the
    response.
    ``client``: ``"httpx"``, over aiohttp's connections; ``"aiohttp"``: the same requests in half the time; or a
    function of the number of connections that makes an ``httpx.AsyncClient`` or an ``aiohttp.ClientSession``: for
    certificates, proxies, authentication. Redirects are not followed, unless such a client does.
    ``base_url``: stands before addresses that begin with ``/``.
    ``headers``: of every request, behind its own.
    ``timeout``: seconds for each request, from its begin to the last byte of its answer.
    ``max_per_host``: requests under way at one host (scheme, host and port), at most; None: ``max_concurrency``. A
    record that finds no room there holds no worker: it waits parked, counts no attempt, and is woken when there is.
    ``statuses``: what answers mean, where it is not this: 2xx is ``"done"``; 429, and 503 with ``Retry-After``,
    ``"wait"``: nobody asks that host before the time it names (1 s for the record alone where it names none), and no
    attempt is counted, and the same for 413 with ``Retry-After``; other 5xx, 408, 421 and 425 ``"retry"``, as
    connections that fail; all else ``"reject"``.
    ``longest_wait``: seconds; a longer ``Retry-After`` is shortened to it.
    ``max_response_bytes``: bytes of an answer, decoded, at most; a larger one is a RequestFailed, and is not read to
    its end. 16 MiB.
    ``idempotency_key``: the header ``Idempotency-Key`` of each POST that has none. ``"record"``: a UUID made of the
    group, the place where the record stood first, and the index of the request: the same at each attempt, in retry
    topics and after a replay; else a function of the record, or item, and the index; None: no header. Items are no
    records, so there it is to be given.
    ``trace``: pass on ``traceparent`` and ``tracestate`` of the record's headers (W3C Trace Context).
    ``single_flight``: of equal GETs and HEADs under way one is sent, and all get its answer; those of lists are all
    sent.
    ``cache``: keep answers to GETs and HEADs for a while, those of lists not; None: do not.

    Raises ConfigurationError for what is wrong with any of them.
    """
    return HttpHandler(request, on_response, **options)


@asynccontextmanager
async def _alone(handler: HttpHandler[T, R], context: HandlerContext) -> AsyncIterator[Callable[[T], Awaitable[R]]]:
    async with handler.opened(context) as asking:
        yield asking.handle


class _OpenedHandler:
    """The handler in its context, whose client is opened there."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, item: Any) -> Any:
        return await resource(self._name, Asking).handle(item)

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
        raise ConfigurationError("http_handler base_url", kind_of(base_url), 'must be a text as "https://host"')
    try:
        origin_of(base_url)
    except ConfigurationError as error:
        raise ConfigurationError("http_handler base_url", error.value, 'must be as "https://host/path"') from None
    check_url("http_handler base_url", base_url)
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError("http_handler base_url", "...", "has a query: give params to each Request")


def _check_headers(headers: Mapping[str, str]) -> None:
    check_headers("http_handler", headers)
    for name in headers:
        if name.lower() in _NOT_GIVEN:
            raise ConfigurationError(f"http_handler headers[{name!r}]", "...", "is made by the client: leave it out")
