"""Two clients behind one door: httpx over aiohttp's connections, and a session of aiohttp by itself.

httpx' own pool looks at all its connections for each request, and can die of cancelled ones (encode/httpcore#1093):
with hundreds in flight it is not used. aiohttp by itself costs half the time of httpx over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from aioparallel.callables import check_arguments
from aioparallel.errors import ConfigurationError, RequestFailed, RequestTimeout
from aioparallel.http.deadlines import Deadline, Deadlines
from aioparallel.http.requests import Request, pairs_of, shown
from aioparallel.http.responses import Response
from aioparallel.wording import kind_of

if TYPE_CHECKING:
    import aiohttp
    import httpx

__all__ = ["Client", "ClientFactory", "Sender", "check_client", "opened"]

# Seconds for which a connection that nobody uses is kept.
_KEPT: Final = 30.0

ClientFactory = Callable[[int], "AbstractAsyncContextManager[httpx.AsyncClient | aiohttp.ClientSession]"]
"""Makes a client of the user's own for so many connections at once."""
Client = Literal["httpx", "aiohttp"] | ClientFactory


class Sender(Protocol):
    """A client that is open."""

    async def send(self, request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        """The answer, read to its end, within ``timeout`` seconds. Raises RequestTimeout and RequestFailed."""

    def close(self) -> None:
        """Nothing more is sent."""


def check_client(client: object) -> None:
    """Raises ConfigurationError; also where what it needs is not installed."""
    if client in ("httpx", "aiohttp"):
        try:
            __import__("aiohttp")
            if client == "httpx":
                __import__("httpx")
                __import__("httpx_aiohttp")
        except ImportError as error:
            raise ConfigurationError(
                "http_handler client", client, f'needs {error.name}: pip install "aioparallel[http]"'
            ) from error
    elif not callable(client):
        raise ConfigurationError(
            "http_handler client",
            client,
            'must be "httpx", "aiohttp", or a function of the number of connections that makes a client',
        )
    else:
        check_arguments(client, "http_handler client", "the number of connections", 1)


@asynccontextmanager
async def opened(client: Client, connections: int) -> AsyncIterator[Sender]:
    """A client that may use so many connections at once, and keeps as many. Raises ConfigurationError for what a
    function has made that is none."""
    if client == "httpx":
        client = _httpx_client
    elif client == "aiohttp":
        client = _aiohttp_session
    manager: Any = client(connections)
    if not hasattr(manager, "__aenter__"):
        raise ConfigurationError("http_handler client", manager, f"made {kind_of(manager)}, which cannot be opened")
    async with manager as found:
        sender = _sender(found)
        try:
            yield sender
        finally:
            sender.close()


def _sender(client: object) -> Sender:
    packages = _packages(client)
    if packages.get("AsyncClient") in ("httpx", "httpx2"):
        return _Httpx(client)
    if packages.get("ClientSession") == "aiohttp":
        return _Aiohttp(client)
    raise ConfigurationError(
        "http_handler client", client, f"made {kind_of(client)}; it must be httpx.AsyncClient or aiohttp.ClientSession"
    )


def _packages(client: object) -> dict[str, str]:
    """Of its classes, by their names: what is not installed cannot be imported to ask."""
    return {kind.__name__: kind.__module__.partition(".")[0] for kind in type(client).__mro__}


def _httpx_client(connections: int) -> httpx.AsyncClient:
    import httpx  # noqa: PLC0415 - an extra
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415

    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEPT)
    # What one record's answer sets is nothing for the request of another.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(transport=AiohttpTransport(limits=limits), timeout=None, cookies=no_cookies)


def _aiohttp_session(connections: int) -> aiohttp.ClientSession:
    import aiohttp  # noqa: PLC0415 - an extra

    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEPT)
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
    )


class _Bounded:
    """What both clients have in common: the time of each request, and what goes wrong with it."""

    def __init__(self, client: Any, errors: tuple[type[Exception], ...]) -> None:
        self._client = client
        self._errors = errors
        self.deadlines = Deadlines()

    def close(self) -> None:
        """See :class:`Sender`."""
        self.deadlines.close()

    def failed(self, request: Request, url: str, error: BaseException, deadline: Deadline) -> BaseException:
        """What is to be raised for what the client has raised."""
        asked = f"{request.method} {shown(url)}"
        if deadline.is_over and deadline.take_back() and isinstance(error, asyncio.CancelledError):
            return RequestTimeout(asked, deadline.seconds)
        if isinstance(error, self._errors):
            return RequestFailed(asked, _reason(error))
        return error


class _Httpx(_Bounded):
    def __init__(self, client: Any) -> None:
        module: Any = __import__(_packages(client)["AsyncClient"])
        self._url = module.URL
        super().__init__(client, (module.HTTPError, module.InvalidURL, ValueError, OSError))

    async def send(self, request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        """See :class:`Sender`."""
        params = pairs_of(request.params) if request.params else None
        deadline = self.deadlines.begin(timeout)
        try:
            to = {"url": url} if params is None and "@" not in url else self._to(url, params)
            answer = await self._client.request(request.method, **to, headers=headers, content=request.content)
        except BaseException as error:
            failure = self.failed(request, url, error, deadline)
            if failure is error:
                raise
            raise failure from error
        finally:
            self.deadlines.end(deadline)
        deadline.passed_too_late()
        return Response(request, answer.status_code, answer.headers, answer.content)

    def _to(self, url: str, params: list[tuple[str, str]] | None) -> dict[str, Any]:
        """Whom it is for. A user of the address is no part of it any more: httpx makes a header of him, and aiohttp
        beneath takes no address with a user beside that."""
        found = self._url(url)
        if params is not None:
            found = found.copy_merge_params(params)
        if not found.userinfo:
            return {"url": found}
        bare = {"url": found.copy_with(userinfo=b"")}
        return bare if self._client.auth else {**bare, "auth": (found.username, found.password)}


class _Aiohttp(_Bounded):
    def __init__(self, client: Any) -> None:
        import aiohttp  # noqa: PLC0415 - an extra

        super().__init__(client, (aiohttp.ClientError, ValueError, OSError))

    async def send(self, request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        """See :class:`Sender`."""
        params = pairs_of(request.params) if request.params else None
        deadline = self.deadlines.begin(timeout)
        try:
            answer = await self._client.request(
                request.method, url, params=params, headers=headers, data=request.content, allow_redirects=False
            )
            content = await answer.read()  # to its end, or the connection is closed: nothing is left to release
        except BaseException as error:
            failure = self.failed(request, url, error, deadline)
            if failure is error:
                raise
            raise failure from error
        finally:
            self.deadlines.end(deadline)
        deadline.passed_too_late()
        return Response(request, answer.status, answer.headers, content)


def _reason(error: Exception) -> str:
    # Its text may be empty, or have the whole address in it, with the query. And httpx-aiohttp calls a refused
    # connection a timeout, so what is beneath it is told.
    cause = error.__cause__ or error
    strerror = cause.strerror if isinstance(cause, OSError) else None
    return f"{type(cause).__name__} ({strerror})" if strerror else type(cause).__name__
