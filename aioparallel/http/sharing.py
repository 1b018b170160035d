"""Responses that several records share: of equal requests in flight, and from a cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from aioparallel.config.handling import check_count, check_time
from aioparallel.config.option_docs import documented
from aioparallel.http.requests import Request, pairs_of
from aioparallel.http.responses import Response

__all__ = ["Cache", "Flight", "Flights", "ResponseCache", "identity_of"]

_SHARED = ("GET", "HEAD")
# Approximate bytes of memory for each header besides its text, and for each response besides headers and content.
_HEADER, _ENTRY = 200, 1_500


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """A cache of responses to GET and HEAD whose status is "done". Responses with ``Cache-Control: no-store`` or
    ``no-cache`` are not kept; ``max-age`` limits the time."""

    seconds: float
    """Longest time to keep a response, in seconds."""
    entries: int = 10_000
    """Most responses; the least recently used is dropped first."""
    max_bytes: int = 64 * 1024 * 1024
    """Most bytes of memory, estimated; a larger response is not kept. 64 MiB."""

    def __post_init__(self) -> None:
        check_time("Cache seconds", self.seconds)
        check_count("Cache entries", self.entries)
        check_count("Cache max_bytes", self.max_bytes)


def identity_of(request: Request, url: str) -> Hashable | None:
    """A value that equal requests share; None for methods other than GET and HEAD."""
    if request.method not in _SHARED:
        return None
    params = tuple(pairs_of(request.params)) if request.params else ()
    return request.method, url, params, request.content, tuple(sorted(request.headers.items()))


class ResponseCache:
    """Least-recently-used cache with expiry. ``clock`` returns seconds."""

    def __init__(self, cache: Cache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Response, int]] = OrderedDict()
        """Expiry, response, and its size when it came: users may change a response."""
        self._bytes = 0

    def get(self, identity: Hashable) -> Response | None:
        """The cached response, unless it has expired."""
        found = self._kept.get(identity)
        if found is None:
            return None
        if self._clock() >= found[0]:
            self._forget(identity)
            return None
        self._kept.move_to_end(identity)
        return found[1]

    def put(self, identity: Hashable, response: Response) -> None:
        """Cache a response, as far as its Cache-Control allows."""
        control = [value for name, value in response.headers.items() if name.lower() == "cache-control"]
        seconds = min(self._cache.seconds, _freshness(",".join(control)))
        if seconds <= 0:
            return
        self._forget(identity)
        size = _size(response)
        if size > self._cache.max_bytes:
            return
        self._kept[identity] = self._clock() + seconds, response, size
        self._bytes += size
        while len(self._kept) > self._cache.entries or self._bytes > self._cache.max_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, identity: Hashable) -> None:
        found = self._kept.pop(identity, None)
        if found is not None:
            self._bytes -= found[2]


def _size(response: Response) -> int:
    request = response.request
    headers = sum(len(name) + len(value) + _HEADER for name, value in response.headers.items())
    return len(response.content) + len(request.content or b"") + len(request.url) + headers + _ENTRY


def _freshness(control: str) -> float:
    """Seconds that ``Cache-Control`` allows to keep a response."""
    longest = float("inf")
    for one in control.lower().split(","):
        name, _, value = one.strip().partition("=")
        if name in ("no-store", "no-cache"):
            return 0.0
        if name == "max-age" and value.strip('"').isdecimal():
            longest = float(value.strip('"'))
    return longest


class Flight:
    """A request in a task of its own, awaited by several records. Cancelled when the last one stops waiting."""

    def __init__(self, task: asyncio.Task[Response], forget: Callable[[Flight], None]) -> None:
        self._task = task
        self._forget = forget
        self._waiting = 0

    async def response(self) -> Response:
        """Wait for the response. Raises the error of the request in every waiter."""
        self._waiting += 1
        try:
            await asyncio.wait((self._task,))  # does not cancel the task
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._forget(self)  # at once: a later waiter must not join a cancelled request
                self._task.cancel()
        if self._task.cancelled():  # the event loop shuts down
            raise asyncio.CancelledError
        return self._task.result()


class Flights:
    """Requests in flight by identity."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}

    def get(self, identity: Hashable) -> Flight | None:
        """The equal request in flight, if there is one."""
        return self._flights.get(identity)

    def begin(
        self, identity: Hashable, send: Callable[[], Coroutine[Any, Any, Response]], on_end: Callable[[], None]
    ) -> Flight:
        """Start a request. ``on_end()`` is called when it ends, also if it is cancelled before it started."""

        def forget(one: Flight) -> None:
            if self._flights.get(identity) is one:
                del self._flights[identity]

        def ended(task: asyncio.Task[Response]) -> None:
            forget(flight)
            on_end()
            if not task.cancelled():
                task.exception()  # marks it as retrieved: no waiter may be left

        task = asyncio.get_running_loop().create_task(send(), name="aioparallel-request")
        flight = self._flights[identity] = Flight(task, forget)
        task.add_done_callback(ended)
        return flight
