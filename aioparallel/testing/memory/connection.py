"""One connection of a producer to one node of the in-memory broker: its requests stay in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from aioparallel.codes import ErrorCode
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Fault, Request
from aioparallel.testing.memory.link import carry_out
from aioparallel.testing.memory.refused import Refused

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """Requests arrive in the order in which they were sent, and their answers come back in it, so a delay holds up
    what follows. A request that is lost, or whose answer is, holds up nothing else.

    It breaks by :meth:`close`, when an answer does not come in time (whatever came after that could not be told from
    it), and when the node stops. All that wait for an answer then hear of it at once. **What was sent still arrives**,
    late or when a hung node goes on, as bytes do that are in the socket buffers; its answer goes nowhere. Only a node
    that stops loses it.
    """

    def __init__(self, broker: InMemoryBroker, node: int) -> None:
        self.is_open = not broker.nodes.is_stopped(node)
        self._broker = broker
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._stops = broker.nodes.stops(node)
        # The kernel of a hung node takes the connection, but clients send nothing before the node has answered.
        self._is_greeted = not broker.nodes.is_hung(node)
        self._waiting: set[Callable[[Refused], None]] = set()
        self._there = _Way(self._loop)
        self._back = _Way(self._loop)
        if self.is_open:
            broker.nodes.attach(node, self)

    async def call(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        """One attempt. ``do(now)`` runs when the node carries the request out, even if nobody waits for it by then.

        Raises Refused for what the node answers, and for a connection that breaks (NETWORK_EXCEPTION); TimeoutError
        when no answer comes within ``timeout`` seconds.
        """
        fault = self._broker.faults.decide(request, self._node)
        if not (self.is_open and self._broker.is_reachable):
            await asyncio.sleep(0)  # nothing is answered in the same step of the loop
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
        nodes = self._broker.nodes
        if nodes.stops(self._node) == self._stops:
            nodes.arrive(self._node, lambda: self._carry_out(fault, do, answer))

    def _carry_out(self, fault: Fault, do: Callable[[float], T], answer: asyncio.Future[T]) -> None:
        if not (self.is_open or self._is_greeted):
            return
        self._is_greeted = True
        settle: Callable[[], None]
        try:
            settle = partial(answer.set_result, carry_out(self._broker, fault, do, self._loop.time()))
        except Refused as refused:
            settle = partial(answer.set_exception, refused)
        if not fault.is_response_lost:
            self._back.send(fault.response_delay, lambda: None if answer.done() else settle())

    def close(self) -> None:
        """Break it."""
        self.is_open = False
        self._broker.nodes.detach(self._node, self)
        for break_off in tuple(self._waiting):
            break_off(Refused(ErrorCode.NETWORK_EXCEPTION))


class _Way:
    """One direction of a connection: what is sent later arrives later."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: deque[Callable[[], None]] = deque()
        self._latest = 0.0

    def send(self, delay: float, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` in ``delay`` seconds, or later if something sent before takes longer."""
        now = self._loop.time()
        self._latest = max(self._latest, now + delay)
        self._under_way.append(arrive)
        # One call for each of them, in any order: each takes the one that is first.
        if self._latest > now:
            self._loop.call_at(self._latest, self._next)
        else:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._under_way.popleft()()
