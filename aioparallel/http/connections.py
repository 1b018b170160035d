"""The clients that are made here: their connections, and how many of them are kept while nobody uses them."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from yarl import URL

from aioparallel.http.bodies import ACCEPTED
from aioparallel.http.sending import SENDING

if TYPE_CHECKING:
    import httpx

__all__ = ["Connections", "aiohttp_session", "httpx_client"]

# Seconds for which a connection that nobody uses is kept; and so many of them at least, over all hosts.
_KEPT: Final = 30.0
_LEAST: Final = 100
_HEADERS: Final = {"Accept-Encoding": ACCEPTED}


class Connections(aiohttp.TCPConnector):
    """aiohttp's, of which no more than ``limit`` (or a hundred) are open that nobody uses, over all hosts: each
    is kept for half a minute, and a thousand hosts in that time were a thousand of them. aiohttp bounds only those in
    use. Overrides ``_release`` and ``_get``, which are its own: ``tests/unit/http/test_connections.py``."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(limit=limit, keepalive_timeout=_KEPT, **options)
        self._most = max(limit, _LEAST)
        self._unused: dict[Any, Any] = {}  # the key of each, those first that were used before the others

    async def _get(self, key: Any, traces: Any) -> Any:
        found = await super()._get(key, traces)
        if found is not None:
            self._unused.pop(found.protocol, None)
        if (sending := SENDING.get()) is not None:
            sending.found_open = found is not None
        return found

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        if self.closed or protocol.transport is None:  # it is not kept
            return
        self._unused[protocol] = key
        if len(self._unused) > self._most:
            self._drop(next(iter(self._unused)))

    def _drop(self, protocol: Any) -> None:
        key = self._unused.pop(protocol)
        kept = self._conns.get(key)
        if kept is not None:
            for one in kept:
                if one[0] is protocol:
                    kept.remove(one)
                    break
            if not kept:
                del self._conns[key]
        protocol.close()

    def close_unused(self, url: str | None = None) -> None:
        """Close what nobody uses, to the host of this address or to all."""
        to = None if url is None else URL(url)
        for protocol, key in list(self._unused.items()):
            if to is None or (key.host, key.port) == (to.raw_host, to.port):
                self._drop(protocol)


def httpx_client(connections: int) -> tuple[httpx.AsyncClient, Connections]:
    """httpx over aiohttp's connections. Within a running event loop."""
    import httpx  # noqa: PLC0415 - who takes aiohttp alone needs none
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415

    connector = Connections(connections, ssl=httpx.create_ssl_context())
    session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
    # What one record's answer sets is nothing for the request of another.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    transport = AiohttpTransport(client=session)
    return httpx.AsyncClient(transport=transport, timeout=None, cookies=no_cookies, headers=_HEADERS), connector


def aiohttp_session(connections: int) -> tuple[aiohttp.ClientSession, Connections]:
    """Of aiohttp by itself. Within a running event loop."""
    connector = Connections(connections)
    timeout = aiohttp.ClientTimeout(total=None)
    no_cookies = aiohttp.DummyCookieJar()
    session = aiohttp.ClientSession(connector=connector, cookie_jar=no_cookies, timeout=timeout, headers=_HEADERS)
    return session, connector
