"""Sends requests through httpx over aiohttp's connections, or through an aiohttp session alone.

httpx's own pool is not used: it scans all connections for each request, and cancelled requests can break it
(encode/httpcore#1093). aiohttp alone takes half the time of httpx over it.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from aioparallel.config.callables import check_arguments
from aioparallel.handlers.running_out import out_of_resources
from aioparallel.http.bodies import Body, check_length
from aioparallel.http.client_errors import reason_of, was_lost
from aioparallel.http.httpx_logging import SENDING, hide_our_requests
from aioparallel.http.request_deadlines import Deadline, Deadlines
from aioparallel.http.requests import Request, has_header, pairs_of, shown
from aioparallel.http.responses import Response
from aioparallel.records.errors import AioparallelError, ConfigurationError, RequestFailed, RequestTimeout
from aioparallel.records.wording import kind_of

if TYPE_CHECKING:
    import aiohttp
    import httpx

    from aioparallel.http.connections import Connections

__all__ = ["Client", "ClientFactory", "ReadLimits", "Sender", "check_client", "opened"]

_Params = list[tuple[str, str]] | None
# Methods of a Request that may be repeated (RFC 9110, 9.2.2).
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# Resends on new connections after a lost one; the second for clients that do not say whether it had been reused.
_RESENDS, _RESENDS_UNSURE = 2, 1
# A Content-Length has fewer digits.
_DIGITS: Final = 20
# Most bytes and seconds for reading a body that is not needed, in order to keep the connection.
_UNWANTED, _UNWANTED_SECONDS = 1 << 16, 1.0

ClientFactory = Callable[[int], "AbstractAsyncContextManager[httpx.AsyncClient | aiohttp.ClientSession]"]
"""Makes a client for the given number of concurrent connections."""
Client = Literal["httpx", "aiohttp"] | ClientFactory


class ReadLimits(NamedTuple):
    """Which bodies are read, and how much of them."""

    most: int
    """Most bytes of a body, decoded."""
    wanted: frozenset[int]
    """Statuses whose body is read. Errors in the bodies of others are ignored."""


def check_client(client: object) -> None:
    """Raises ConfigurationError, also if a package that it needs is not installed."""
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
    elif not callable(client) or inspect.iscoroutinefunction(client):
        raise ConfigurationError(
            "http_handler client",
            client,
            'must be "httpx", "aiohttp", or a plain function of the number of connections that makes a client',
        )
    else:
        check_arguments(client, "http_handler client", "the number of connections", 1)


@asynccontextmanager
async def opened(client: Client, connections: int, reading: ReadLimits) -> AsyncIterator[Sender]:
    """Open a client for so many concurrent connections. Raises ConfigurationError if a factory made something else."""
    pool: Connections | None = None
    manager: Any
    if callable(client):
        manager = client(connections)
    else:
        from aioparallel.http.connections import aiohttp_session, httpx_client  # noqa: PLC0415 - needs the extra

        manager, pool = (httpx_client if client == "httpx" else aiohttp_session)(connections)
    if not hasattr(manager, "__aenter__"):
        if inspect.iscoroutine(manager):
            manager.close()  # nothing awaits it
        raise ConfigurationError("http_handler client", manager, f"made {kind_of(manager)}, which cannot be opened")
    async with manager as found:
        sender = _sender(found)(found, reading, pool)
        try:
            yield sender
        finally:
            sender.close()


def _sender(client: object) -> type[_Httpx | _Aiohttp]:
    packages = _packages(client)
    if packages.get("AsyncClient") in ("httpx", "httpx2"):
        return _Httpx
    if packages.get("ClientSession") == "aiohttp":
        return _Aiohttp
    raise ConfigurationError(
        "http_handler client", client, f"made {kind_of(client)}; it must be httpx.AsyncClient or aiohttp.ClientSession"
    )


def _packages(client: object) -> dict[str, str]:
    """The packages of its classes, by class name: packages that are not installed cannot be imported for a check."""
    return {kind.__name__: kind.__module__.partition(".")[0] for kind in type(client).__mro__}


class Sender(ABC):
    """An open client: applies timeouts, resends after lost connections, and hides secrets in errors.

    ``pool``: the connector, unless the client is the user's own.
    """

    def __init__(self, client: Any, reading: ReadLimits, pool: Connections | None) -> None:
        self._client = client
        self._reading = reading
        self._pool = pool
        self.sends_accept_encoding = pool is not None
        """Whether the client itself sends Accept-Encoding."""
        self.deadlines = Deadlines()

    def close(self) -> None:
        """Stop the timers of deadlines."""
        self.deadlines.close()

    async def send(self, request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        """Returns the response, read to its end within ``timeout`` seconds. Raises RequestTimeout, RequestFailed and
        OutOfResources without the client's own error, which may hold headers and queries."""
        params = pairs_of(request.params) if request.params else None
        deadline = self.deadlines.begin(timeout)
        pool, resends = self._pool, 0
        try:
            while True:
                opened = 0 if pool is None else pool.opened
                try:
                    answer = await self.ask(request, url, params, headers)
                    break
                except Exception as error:
                    if not self._resends(request, headers, error, opened, resends):
                        raise
                # The server had closed the connection. Resend on a new one; this counts as no attempt.
                resends += 1
                if pool is not None:
                    pool.close_idle(url)  # as old as the lost one
            status, fields = self.head(answer)
            if status in self._reading.wanted:
                if self._is_plain(fields):
                    content = await self.whole(answer)
                else:
                    content = await self._decoded(answer, fields, request.method == "HEAD")
            else:
                content = b""
                await self._passed_over(answer)
            found = Response(request, status, fields, content)
        except BaseException as error:
            failure = self._failure(request, url, error, deadline)
            if failure is error:
                raise
        else:
            deadline.ignore()
            return found
        finally:
            self.deadlines.end(deadline)
        raise failure from None  # outside the except block, so that the client's error is not its context

    def _resends(self, request: Request, headers: Mapping[str, str], error: Exception, opened: int, times: int) -> bool:
        """Whether to resend after ``times`` resends. ``opened``: the pool's count of connections before the request."""
        most = _RESENDS_UNSURE
        if self._pool is not None:
            most = 0 if self._pool.opened_here_since(opened) else _RESENDS
        if times >= most or not was_lost(error):
            return False
        return request.method in _IDEMPOTENT or has_header(headers, "idempotency-key")

    def _failure(self, request: Request, url: str, error: BaseException, deadline: Deadline) -> BaseException:
        """The error to raise for an error of the client."""
        asked = f"{request.method} {shown(url)}"
        if deadline.is_over and deadline.take_back() and isinstance(error, asyncio.CancelledError):
            return RequestTimeout(asked, deadline.seconds)
        if not isinstance(error, Exception) or isinstance(error, AioparallelError):
            return error  # a cancellation, or a decision about the record by the user's own client
        short = out_of_resources(error)
        if short is None:
            return RequestFailed(asked, reason_of(error))
        if self._pool is not None:
            self._pool.close_idle()
        return short

    def _is_plain(self, fields: Mapping[str, str]) -> bool:
        """Whether the body has a length within the limit and no encoding."""
        length = fields.get("Content-Length")
        return (
            length is not None
            and length.isdecimal()
            and len(length) < _DIGITS
            and int(length) <= self._reading.most
            and "Content-Encoding" not in fields
            and "Transfer-Encoding" not in fields  # overrides Content-Length (RFC 9112, 6.3)
        )

    async def _decoded(self, answer: Any, fields: Mapping[str, str], has_none: bool) -> bytes:
        coding = ""
        if "Content-Encoding" in fields:  # several fields are one list; one client gives them one by one
            coding = ",".join(value for name, value in fields.items() if name.lower() == "content-encoding")
        try:
            body = Body(coding, self._reading.most)
            if body.is_plain and not has_none:
                check_length(fields.get("Content-Length"), self._reading.most)
            async for raw in self.raw(answer):
                body.feed(raw)
            return body.end()
        finally:
            await self.leave(answer)

    async def _passed_over(self, answer: Any) -> None:
        try:
            await self._skimmed(answer)
        finally:
            await self.leave(answer)

    async def _skimmed(self, answer: Any) -> None:
        """Read a body that is not needed. Errors are ignored: the status decides."""
        size = 0
        with suppress(Exception):
            async with asyncio.timeout(_UNWANTED_SECONDS):
                async for raw in self.raw(answer):
                    size += len(raw)
                    if size > _UNWANTED:
                        return

    @abstractmethod
    def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Awaitable[Any]:
        """The client's own response, once its head was read."""

    @abstractmethod
    def head(self, answer: Any) -> tuple[int, Mapping[str, str]]:
        """Its status and headers."""

    @abstractmethod
    def whole(self, answer: Any) -> Awaitable[bytes]:
        """Its whole body; only for one with a length and no encoding."""

    @abstractmethod
    def raw(self, answer: Any) -> AsyncIterator[bytes]:
        """Its body as it arrives, not decoded."""

    @abstractmethod
    async def leave(self, answer: Any) -> None:
        """Release the connection: it is reused if the body was read to its end, else closed."""


class _Httpx(Sender):
    def __init__(self, client: Any, reading: ReadLimits, pool: Connections | None) -> None:
        super().__init__(client, reading, pool)
        package = _packages(client)["AsyncClient"]
        self._url = __import__(package).URL
        hide_our_requests(package)
        if not client.follow_redirects:
            hooks = client.event_hooks
            client.event_hooks = {**hooks, "response": [*hooks["response"], self._stop_at_redirects]}

    async def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Any:
        to, auth = (url, None) if params is None and "@" not in url else self._to(url, params)
        made = self._client.build_request(request.method, to, headers=headers, content=request.content)
        more = {} if auth is None else {"auth": auth}
        token = SENDING.set(True)
        try:
            return await self._client.send(made, stream=True, **more)
        except _Redirected as redirected:
            return redirected
        finally:
            SENDING.reset(token)

    async def _stop_at_redirects(self, answer: Any) -> None:
        """A response hook: at a redirect httpx always builds the next request, and fails if it cannot, even when it
        will not send it."""
        if not answer.has_redirect_location:
            return
        raw: list[bytes] = []
        if answer.status_code not in self._reading.wanted:
            await self._skimmed(answer)
        elif not answer.is_stream_consumed:
            size = 0
            async for some in answer.aiter_raw():
                raw.append(some)
                size += len(some)
                if size > self._reading.most:
                    break
        else:
            raise _Redirected(answer, [answer.content], is_stream_consumed=True)
        raise _Redirected(answer, raw)

    def _to(self, url: str, params: _Params) -> tuple[Any, tuple[str, str] | None]:
        """The URL without user information, and the login from it. httpx makes a header of the login, and aiohttp
        beneath rejects a URL with a login beside that header."""
        found = self._url(url)
        if params is not None:
            found = found.copy_merge_params(params)
        if not found.userinfo:
            return found, None
        bare = found.copy_with(userinfo=b"")
        return bare, None if self._client.auth else (found.username, found.password)

    def head(self, answer: Any) -> tuple[int, Mapping[str, str]]:
        return answer.status_code, answer.headers

    def raw(self, answer: Any) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = answer.aiter_raw()
        return chunks

    async def whole(self, answer: Any) -> bytes:
        try:
            if answer.is_stream_consumed:
                return self._read_before(answer)
            return b"".join([some async for some in answer.aiter_raw()])
        finally:
            await answer.aclose()

    async def _decoded(self, answer: Any, fields: Mapping[str, str], has_none: bool) -> bytes:
        if not answer.is_stream_consumed:
            return await super()._decoded(answer, fields, has_none)
        await answer.aclose()
        return self._read_before(answer)

    def _read_before(self, answer: Any) -> bytes:
        """A body that the user's own client has already read and decoded, for a hook or its authentication."""
        body = Body("", self._reading.most)
        body.feed(answer.content)
        return body.end()

    async def leave(self, answer: Any) -> None:
        await answer.aclose()


class _Redirected(Exception):
    """Carries a redirect response, already read, out of httpx's hook."""

    def __init__(self, answer: Any, raw: list[bytes], *, is_stream_consumed: bool = False) -> None:
        super().__init__()
        self.status_code = answer.status_code
        self.headers = answer.headers
        self.is_stream_consumed = is_stream_consumed
        self._raw = raw

    @property
    def content(self) -> bytes:
        """The decoded body."""
        return self._raw[0]

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it was received."""
        for some in self._raw:
            yield some

    async def aclose(self) -> None:
        """Nothing is left to close."""


class _Aiohttp(Sender):
    def __init__(self, client: Any, reading: ReadLimits, pool: Connections | None) -> None:
        super().__init__(client, reading, pool)
        # Statuses are handled elsewhere. A function of the user's session is still called: None keeps its setting.
        self._raise_for_status = None if callable(client.raise_for_status) else False

    def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Awaitable[Any]:
        asked: Awaitable[Any] = self._client.request(
            request.method,
            url,
            params=params,
            headers=headers,
            data=request.content,
            allow_redirects=False,
            auto_decompress=False,
            raise_for_status=self._raise_for_status,
        )
        return asked

    def head(self, answer: Any) -> tuple[int, Mapping[str, str]]:
        return answer.status, answer.headers

    async def raw(self, answer: Any) -> AsyncIterator[bytes]:
        if answer.content.at_eof():  # the user's own session may have read and kept it
            yield await answer.read()
            return
        async for some in answer.content.iter_any():
            yield some

    def whole(self, answer: Any) -> Awaitable[bytes]:
        content: Awaitable[bytes] = answer.read()  # releases or closes the connection
        return content

    async def leave(self, answer: Any) -> None:
        """See :class:`Sender`."""
        answer.release()
