"""A producer's connection to one node of the in-memory broker, which keeps its requests in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Fault, Request
from aioparallel.testing.memory.link import answered
from aioparallel.testing.memory.refused import Refused

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """Requests arrive in the order of sending, and so do their answers, so a delay holds up later ones. A lost request
    or answer holds up nothing.

    The connection breaks by :meth:`close`, when an answer times out (a later answer could not be assigned to its
    request), and when the node stops. Requests that wait for an answer then fail at once. **Requests that were sent
    still arrive**, later or when a hung node continues, like bytes in socket buffers. Their answers are discarded. They
    are lost only if the node stops.
    """

    def __init__(self, broker: InMemoryBroker, node: int) -> None:
        self.is_open = not broker.is_stopped(node)
        self._broker = broker
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._stops = broker.stops(node)
        # The kernel of a hung node accepts the connection, but clients send nothing before the node has answered.
        self._is_greeted = not broker.is_hung(node)
        self._waiting: set[Callable[[Refused], None]] = set()
        self._there = _Way(self._loop)
        self._back = _Way(self._loop)
        if self.is_open:
            broker.attach(node, self)

    async def call(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        """Send a request once. ``do(now)`` runs when the node handles it, even if the caller has given up by then.

        Raises Refused for an error from the node and for a broken connection (NETWORK_EXCEPTION), and TimeoutError
        after ``timeout`` seconds.
        """
        fault = self._broker.faults.decide(request, self._node)
        if not (self.is_open and self._broker.is_reachable):
            await asyncio.sleep(0)  # never fail in the same step of the loop
            raise Refused(ErrorCode.NETWORK_EXCEPTION)
        answer: asyncio.Future[T] = self._loop.create_future()
        if not fault.is_request_lost:
            self._there.send(fault.request_delay, lambda: self._arrive(fault, do, answer))

        def break_off(refused: Refused) -> None:
            if not answer.done():
                answer.set_exception(refused)

        self._waiting.add(break_off)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            self.close()
            raise
        finally:
            self._waiting.discard(break_off)

    def _arrive(self, fault: Fault, do: Callable[[float], T], answer: asyncio.Future[T]) -> None:
        if self._broker.stops(self._node) == self._stops:
            self._broker.arrive(self._node, lambda: self._carry_out(fault, do, answer))

    def _carry_out(self, fault: Fault, do: Callable[[float], T], answer: asyncio.Future[T]) -> None:
        if not (self.is_open or self._is_greeted):
            return
        self._is_greeted = True
        arrive = answered(self._broker, fault, do, self._loop.time(), answer)
        if not fault.is_response_lost:
            self._back.send(fault.response_delay, arrive)

    def close(self) -> None:
        """Break the connection."""
        self.is_open = False
        self._broker.detach(self._node, self)
        for break_off in tuple(self._waiting):
            break_off(Refused(ErrorCode.NETWORK_EXCEPTION))


class _Way:
    """One direction of a connection, which keeps the order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: deque[Callable[[], None]] = deque()
        self._latest = 0.0

    def send(self, delay: float, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` in ``delay`` seconds, or later if something sent before takes longer."""
        now = self._loop.time()
        self._latest = max(self._latest, now + delay)
        self._under_way.append(arrive)
        # The calls may run in any order, because each one delivers the first item.
        if self._latest > now:
            self._loop.call_at(self._latest, self._next)
        else:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._under_way.popleft()()
