"""The clients made here, and their connector, which limits idle connections."""

from __future__ import annotations

import asyncio
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import aiohttp
from yarl import URL

from aioparallel.http.bodies import ACCEPTED

if TYPE_CHECKING:
    import httpx

__all__ = ["Connections", "aiohttp_session", "httpx_client"]

# Seconds that an idle connection is kept, and the least number kept over all hosts.
_KEPT: Final = 30.0
_LEAST: Final = 100
# Seconds between two checks of the number of idle connections, while released ones may exceed the limit.
_LOOK: Final = 1.0
_HEADERS: Final = {"Accept-Encoding": ACCEPTED}


class Connections(aiohttp.TCPConnector):
    """aiohttp's connector, with a limit on idle connections as well: ``limit`` over all hosts, at least a hundred.

    aiohttp keeps each for half a minute, so a thousand hosts within that time are a thousand open connections. This one
    closes those that were idle longest. It also records which task has opened a connection.

    Overrides ``_create_connection`` and reads ``_conns`` and ``_acquired``, private in aiohttp;
    ``tests/unit/http/test_connections.py`` fails if they change."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(limit=limit, keepalive_timeout=_KEPT, **options)
        self._most = max(limit, _LEAST)
        self._check_is_due = False
        self.opened = 0
        """Connections opened so far, including failed ones."""
        self._opened_last: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by task: the value of opened then

    def opened_here_since(self, opened: int) -> bool:
        """Whether the running task has opened a connection since the count was ``opened``."""
        return self._opened_last.get(asyncio.current_task(), 0) > opened

    def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        self.opened += 1
        self._opened_last[asyncio.current_task()] = self.opened
        # Only a new connection can raise the number of idle ones.
        self._close_oldest(self._most - 1)
        self._check_later()
        return super()._create_connection(req, traces, timeout)

    def _close_oldest(self, most: int) -> None:
        """Close idle connections, the oldest first, until ``most`` are left."""
        while sum(map(len, self._conns.values())) > most:
            key, kept = min(self._conns.items(), key=lambda item: item[1][0][1])
            kept.popleft()[0].close()
            if not kept:
                del self._conns[key]

    def _check_later(self) -> None:
        if not self._check_is_due and sum(map(len, self._conns.values())) + len(self._acquired) > self._most:
            self._check_is_due = True
            asyncio.get_running_loop().call_later(_LOOK, self._check)

    def _check(self) -> None:
        self._check_is_due = False
        self._close_oldest(self._most)
        self._check_later()

    def close_idle(self, url: str | None = None) -> None:
        """Close the idle connections to the host of ``url``, or to all hosts."""
        to = None if url is None else URL(url)
        for key in list(self._conns):
            if to is None or (key.host, key.port) == (to.raw_host, to.port):
                for protocol, _ in self._conns.pop(key):
                    protocol.close()


def httpx_client(connections: int) -> tuple[httpx.AsyncClient, Connections]:
    """httpx over aiohttp's connections. Call it in a running event loop."""
    import httpx  # noqa: PLC0415 - not needed for aiohttp alone
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415

    connector = Connections(connections, ssl=httpx.create_ssl_context())
    session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
    # A response must not set cookies for the requests of other records.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    transport = AiohttpTransport(client=session)
    return httpx.AsyncClient(transport=transport, timeout=None, cookies=no_cookies, headers=_HEADERS), connector


def aiohttp_session(connections: int) -> tuple[aiohttp.ClientSession, Connections]:
    """aiohttp alone. Call it in a running event loop."""
    connector = Connections(connections)
    timeout = aiohttp.ClientTimeout(total=None)
    no_cookies = aiohttp.DummyCookieJar()
    session = aiohttp.ClientSession(connector=connector, cookie_jar=no_cookies, timeout=timeout, headers=_HEADERS)
    return session, connector
