"""Two clients behind one door: httpx over aiohttp's connections, and a session of aiohttp by itself.

httpx' own pool looks at all its connections for each request, and can die of cancelled ones (encode/httpcore#1093):
with hundreds in flight it is not used. aiohttp by itself costs half the time of httpx over it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from aioparallel.callables import check_arguments
from aioparallel.errors import AioparallelError, ConfigurationError, RequestFailed, RequestTimeout
from aioparallel.http.bodies import Body, check_length
from aioparallel.http.deadlines import Deadline, Deadlines
from aioparallel.http.requests import Request, has_header, pairs_of, shown
from aioparallel.http.responses import Response
from aioparallel.http.sending import SENDING, keep_requests_to_ourselves
from aioparallel.http.trouble import reason_of, was_lost
from aioparallel.running_out import out_of_resources
from aioparallel.wording import kind_of

if TYPE_CHECKING:
    import aiohttp
    import httpx

    from aioparallel.http.connections import Connections

__all__ = ["Client", "ClientFactory", "Reading", "Sender", "check_client", "opened"]

_Params = list[tuple[str, str]] | None
# RFC 9110, 9.2.2: what may be asked again by itself, of the methods of a Request.
_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# Attempts on new connections after one that was lost; and where a client does not say whether it had been open.
_AGAIN, _AGAIN_PERHAPS = 2, 1
# Digits of a length that may be one.
_DIGITS: Final = 20
# Bytes of a body that nobody wants, which are read to keep the connection; and seconds that they may take.
_UNWANTED, _UNWANTED_SECONDS = 1 << 16, 1.0

ClientFactory = Callable[[int], "AbstractAsyncContextManager[httpx.AsyncClient | aiohttp.ClientSession]"]
"""Makes a client of the user's own for so many connections at once."""
Client = Literal["httpx", "aiohttp"] | ClientFactory


class Reading(NamedTuple):
    """How answers are read."""

    most: int
    """Bytes of a body, decoded."""
    wanted: frozenset[int]
    """Statuses whose body is. What is wrong with that of another changes nothing."""


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
async def opened(client: Client, connections: int, reading: Reading) -> AsyncIterator[Sender]:
    """A client that may use so many connections at once. Raises ConfigurationError for what a function has made that is
    none."""
    kept: Connections | None = None
    manager: Any
    if callable(client):
        manager = client(connections)
    else:
        from aioparallel.http.connections import aiohttp_session, httpx_client  # noqa: PLC0415 - needs the extra

        manager, kept = (httpx_client if client == "httpx" else aiohttp_session)(connections)
    if not hasattr(manager, "__aenter__"):
        raise ConfigurationError("http_handler client", manager, f"made {kind_of(manager)}, which cannot be opened")
    async with manager as found:
        sender = _sender(found)(found, reading, kept)
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
    """Of its classes, by their names: what is not installed cannot be imported to ask."""
    return {kind.__name__: kind.__module__.partition(".")[0] for kind in type(client).__mro__}


class Sender(ABC):
    """A client that is open: the time of each request, attempts that nobody counts, and what goes wrong."""

    def __init__(self, client: Any, reading: Reading, kept: Connections | None) -> None:
        self._client = client
        self._reading = reading
        self._kept = kept
        self.says_codings = kept is not None
        """Whether it says by itself which codings are read."""
        self.deadlines = Deadlines()

    def close(self) -> None:
        """Nothing more is sent."""
        self.deadlines.close()

    async def send(self, request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        """The answer, read to its end, within ``timeout`` seconds. Raises RequestTimeout, RequestFailed and
        OutOfResources, with nothing of what the client has raised: that may hold headers and whole addresses."""
        params = pairs_of(request.params) if request.params else None
        deadline = self.deadlines.begin(timeout)
        kept = self._kept
        opened = 0 if kept is None else kept.opened
        try:
            try:
                answer = await self.ask(request, url, params, headers)
            except Exception as error:
                if not self._goes_again(request, headers, error, opened, 0):
                    raise
                answer = None
            if answer is None:
                answer = await self._asked_again(request, url, params, headers)
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
            deadline.passed_too_late()
            return found
        finally:
            self.deadlines.end(deadline)
        raise failure from None  # not above: it would have the other as its context

    async def _asked_again(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Any:
        """What was sent on a connection that the server was just closing goes on a new one: that is no attempt."""
        times = 1
        while True:
            opened = 0
            if self._kept is not None:
                self._kept.close_idle(url)  # as old as that one, and perhaps as dead
                opened = self._kept.opened
            try:
                return await self.ask(request, url, params, headers)
            except Exception as error:
                if not self._goes_again(request, headers, error, opened, times):
                    raise
            times += 1

    def _goes_again(
        self, request: Request, headers: Mapping[str, str], error: Exception, opened: int, times: int
    ) -> bool:
        """Whether it is to be sent on another connection, after so many times. ``opened``: connections before it."""
        most = _AGAIN_PERHAPS
        if self._kept is not None:
            most = 0 if self._kept.opened_here_since(opened) else _AGAIN
        if times >= most or not was_lost(error):
            return False
        return request.method in _IDEMPOTENT or has_header(headers, "idempotency-key")

    def _failure(self, request: Request, url: str, error: BaseException, deadline: Deadline) -> BaseException:
        """What is to be raised for what the client has raised."""
        asked = f"{request.method} {shown(url)}"
        if deadline.is_over and deadline.take_back() and isinstance(error, asyncio.CancelledError):
            return RequestTimeout(asked, deadline.seconds)
        if not isinstance(error, Exception) or isinstance(error, AioparallelError):
            return error  # a cancellation; or what a client of the user's own decides about the record
        short = out_of_resources(error)
        if short is None:
            return RequestFailed(asked, reason_of(error))
        if self._kept is not None:
            self._kept.close_idle()
        return short

    def _is_plain(self, fields: Mapping[str, str]) -> bool:
        """Whether a body is as long as it says, not too long, and not encoded."""
        length = fields.get("Content-Length")
        return (
            length is not None
            and length.isdecimal()
            and len(length) < _DIGITS
            and int(length) <= self._reading.most
            and "Content-Encoding" not in fields
            and "Transfer-Encoding" not in fields  # which is what counts beside a length (RFC 9112, 6.3)
        )

    async def _decoded(self, answer: Any, fields: Mapping[str, str], has_none: bool) -> bytes:
        coding = ""
        if "Content-Encoding" in fields:  # perhaps several, which one of the clients gives one by one
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
        """Read a body that nobody wants. Its status has said all, whatever becomes of it."""
        size = 0
        with suppress(Exception):
            async with asyncio.timeout(_UNWANTED_SECONDS):
                async for raw in self.raw(answer):
                    size += len(raw)
                    if size > _UNWANTED:
                        return

    @abstractmethod
    def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Awaitable[Any]:
        """The client's own answer, as soon as its head has come."""

    @abstractmethod
    def head(self, answer: Any) -> tuple[int, Mapping[str, str]]:
        """Status and headers."""

    @abstractmethod
    def whole(self, answer: Any) -> Awaitable[bytes]:
        """All of its body, which is as long as it said and not encoded."""

    @abstractmethod
    def raw(self, answer: Any) -> AsyncIterator[bytes]:
        """Its body, as it comes, not decoded."""

    @abstractmethod
    async def leave(self, answer: Any) -> None:
        """Its connection is kept where it was read to its end, and closed otherwise."""


class _Httpx(Sender):
    def __init__(self, client: Any, reading: Reading, kept: Connections | None) -> None:
        super().__init__(client, reading, kept)
        package = _packages(client)["AsyncClient"]
        self._url = __import__(package).URL
        keep_requests_to_ourselves(package)
        if not client.follow_redirects:
            hooks = client.event_hooks
            client.event_hooks = {**hooks, "response": [*hooks["response"], self._stop_at_redirects]}

    async def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Any:
        """See :class:`Sender`."""
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
        """httpx makes the next request of each redirect, also where it does not send it, and fails where it cannot."""
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
        """Whom it is for. A user of the address is no part of it any more: httpx makes a header of him, and aiohttp
        beneath takes no address with a user beside that."""
        found = self._url(url)
        if params is not None:
            found = found.copy_merge_params(params)
        if not found.userinfo:
            return found, None
        bare = found.copy_with(userinfo=b"")
        return bare, None if self._client.auth else (found.username, found.password)

    def head(self, answer: Any) -> tuple[int, Mapping[str, str]]:
        """See :class:`Sender`."""
        return answer.status_code, answer.headers

    def raw(self, answer: Any) -> AsyncIterator[bytes]:
        """See :class:`Sender`."""
        chunks: AsyncIterator[bytes] = answer.aiter_raw()
        return chunks

    async def whole(self, answer: Any) -> bytes:
        """See :class:`Sender`."""
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
        """A body that a client of the user's own has read by itself, for a hook or for its authentication, and has
        decoded."""
        body = Body("", self._reading.most)
        body.feed(answer.content)
        return body.end()

    async def leave(self, answer: Any) -> None:
        """See :class:`Sender`."""
        await answer.aclose()


class _Redirected(Exception):
    """An answer that names another address, read already."""

    def __init__(self, answer: Any, raw: list[bytes], *, is_stream_consumed: bool = False) -> None:
        super().__init__()
        self.status_code = answer.status_code
        self.headers = answer.headers
        self.is_stream_consumed = is_stream_consumed
        self._raw = raw

    @property
    def content(self) -> bytes:
        """What was read, where it is decoded."""
        return self._raw[0]

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """What was read."""
        for some in self._raw:
            yield some

    async def aclose(self) -> None:
        """There is nothing left of it."""


class _Aiohttp(Sender):
    def __init__(self, client: Any, reading: Reading, kept: Connections | None) -> None:
        super().__init__(client, reading, kept)
        # What a status means is said elsewhere. A function of the user's own is called; None: as the session has it.
        self._raise_for_status = None if callable(client.raise_for_status) else False

    def ask(self, request: Request, url: str, params: _Params, headers: Mapping[str, str]) -> Awaitable[Any]:
        """See :class:`Sender`."""
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
        """See :class:`Sender`."""
        return answer.status, answer.headers

    async def raw(self, answer: Any) -> AsyncIterator[bytes]:
        """See :class:`Sender`."""
        if answer.content.at_eof():  # a session of the user's own may have read it by itself, and has kept it then
            yield await answer.read()
            return
        async for some in answer.content.iter_any():
            yield some

    def whole(self, answer: Any) -> Awaitable[bytes]:
        """See :class:`Sender`."""
        content: Awaitable[bytes] = answer.read()  # or it is closed: nothing is left to release
        return content

    async def leave(self, answer: Any) -> None:
        """See :class:`Sender`."""
        answer.release()
