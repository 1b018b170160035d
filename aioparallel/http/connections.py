"""The clients that are made here: their connections, and how many of them are kept while nobody uses them."""

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

# Seconds for which a connection that nobody uses is kept; and so many of them at least, over all hosts.
_KEPT: Final = 30.0
_LEAST: Final = 100
# Seconds between two looks at how many are idle, while those in use may make them too many.
_LOOK: Final = 1.0
_HEADERS: Final = {"Accept-Encoding": ACCEPTED}


class Connections(aiohttp.TCPConnector):
    """aiohttp's connector, which bounds only the connections in use. This one keeps ``limit`` idle ones (or a hundred)
    over all hosts, and closes those that were idle longest: aiohttp keeps each for half a minute, and a thousand hosts
    in that time are a thousand of them. It also knows which task has opened a connection.

    It overrides ``_create_connection`` and reads ``_conns`` and ``_acquired``, which are private to aiohttp:
    ``tests/unit/http/test_connections.py``."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(limit=limit, keepalive_timeout=_KEPT, **options)
        self._most = max(limit, _LEAST)
        self._looks = False
        """Whether it will look."""
        self.opened = 0
        """Connections that were opened, or tried to be."""
        self._opened_last: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by task: the number of its last one

    def opened_here_since(self, opened: int) -> bool:
        """Whether the running task has opened one after that many."""
        return self._opened_last.get(asyncio.current_task(), 0) > opened

    def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        self.opened += 1
        self._opened_last[asyncio.current_task()] = self.opened
        # There are more idle ones only when more are open than before.
        self._close_oldest(self._most - 1)
        self._look_later()
        return super()._create_connection(req, traces, timeout)

    def _close_oldest(self, most: int) -> None:
        """Until no more than so many are idle."""
        while sum(map(len, self._conns.values())) > most:
            key, kept = min(self._conns.items(), key=lambda item: item[1][0][1])
            kept.popleft()[0].close()
            if not kept:
                del self._conns[key]

    def _look_later(self) -> None:
        if not self._looks and sum(map(len, self._conns.values())) + len(self._acquired) > self._most:
            self._looks = True
            asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        """Close what is too many of those that were in use."""
        self._looks = False
        self._close_oldest(self._most)
        self._look_later()

    def close_idle(self, url: str | None = None) -> None:
        """Close what nobody uses, to the host of this address or to all."""
        to = None if url is None else URL(url)
        for key in list(self._conns):
            if to is None or (key.host, key.port) == (to.raw_host, to.port):
                for protocol, _ in self._conns.pop(key):
                    protocol.close()


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
