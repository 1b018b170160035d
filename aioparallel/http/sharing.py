"""Answers that several records share: of equal requests under way, and of those answered a little before."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from aioparallel.handling import check_count, check_time
from aioparallel.http.requests import Request, pairs_of
from aioparallel.http.responses import Response
from aioparallel.option_docs import documented

__all__ = ["Answers", "Cache", "Flight", "Flights", "identity_of"]

_SHARED = ("GET", "HEAD")
# Bytes that each header takes in memory beside its text, and each answer beside all that; about.
_HEADER, _ENTRY = 200, 1_500


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """How answers are kept: those to GET and HEAD that were what was wanted. An answer with ``Cache-Control: no-store``
    is not kept, and one with a ``max-age`` no longer than that."""

    seconds: float
    """For so long."""
    entries: int = 10_000
    """So many at most; the one that was not used for longest goes first."""
    max_bytes: int = 64 * 1024 * 1024
    """So many bytes at most, with what belongs to them; an answer that is larger by itself is not kept. 64 MiB."""

    def __post_init__(self) -> None:
        check_time("Cache seconds", self.seconds)
        check_count("Cache entries", self.entries)
        check_count("Cache max_bytes", self.max_bytes)


def identity_of(request: Request, url: str) -> Hashable | None:
    """What equal requests have in common; None for one that changes something."""
    if request.method not in _SHARED:
        return None
    params = tuple(pairs_of(request.params)) if request.params else ()
    return request.method, url, params, request.content, tuple(sorted(request.headers.items()))


class Answers:
    """Answers kept for a while. ``clock``: seconds."""

    def __init__(self, cache: Cache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Response, int]] = OrderedDict()
        """Until when, the answer, and its size when it came: whoever gets it may change it."""
        self._bytes = 0

    def get(self, identity: Hashable) -> Response | None:
        """The answer, if there is one that is not too old."""
        found = self._kept.get(identity)
        if found is None:
            return None
        if self._clock() >= found[0]:
            self._forget(identity)
            return None
        self._kept.move_to_end(identity)
        return found[1]

    def keep(self, identity: Hashable, response: Response) -> None:
        """For later, as far as the answer allows."""
        said = [value for name, value in response.headers.items() if name.lower() == "cache-control"]  # perhaps several
        seconds = min(self._cache.seconds, _freshness(",".join(said)))
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
    asked = response.request
    headers = sum(len(name) + len(value) + _HEADER for name, value in response.headers.items())
    return len(response.content) + len(asked.content or b"") + len(asked.url) + headers + _ENTRY


def _freshness(control: str) -> float:
    """Seconds for which an answer may be kept."""
    longest = float("inf")
    for one in control.lower().split(","):
        name, _, value = one.strip().partition("=")
        if name in ("no-store", "no-cache"):
            return 0.0
        if name == "max-age" and value.strip('"').isdecimal():
            longest = float(value.strip('"'))
    return longest


class Flight:
    """One request that several wait for, in a task of its own. It ends with the last of them."""

    def __init__(self, task: asyncio.Task[Response], forget: Callable[[Flight], None]) -> None:
        self._task = task
        self._forget = forget
        self._waiting = 0

    async def answer(self) -> Response:
        """Raises what asking raises, to all who wait for it."""
        self._waiting += 1
        try:
            await asyncio.wait((self._task,))  # a cancellation of this wait is none of the task
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._forget(self)  # at once: who comes next would wait for what is cancelled
                self._task.cancel()
        if self._task.cancelled():  # by a loop that shuts down
            raise asyncio.CancelledError
        return self._task.result()


class Flights:
    """Requests under way, by what equal ones have in common."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}

    def under_way(self, identity: Hashable) -> Flight | None:
        """None: there is none."""
        return self._flights.get(identity)

    def begin(
        self, identity: Hashable, send: Callable[[], Coroutine[Any, Any, Response]], on_end: Callable[[], None]
    ) -> Flight:
        """A new one. ``on_end()`` hears of its end, also where it is cancelled before it has begun."""

        def forget(one: Flight) -> None:
            if self._flights.get(identity) is one:
                del self._flights[identity]

        def ended(task: asyncio.Task[Response]) -> None:
            forget(flight)
            on_end()
            if not task.cancelled():
                task.exception()  # all who have waited may be gone

        task = asyncio.get_running_loop().create_task(send(), name="aioparallel-request")
        flight = self._flights[identity] = Flight(task, forget)
        task.add_done_callback(ended)
        return flight
