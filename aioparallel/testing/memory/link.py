"""The path of a request from a client to the in-memory broker, and of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from aioparallel.clients.last_contacts import LastContacts
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import AuthenticationFailed, NotAuthorized
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Fault, Request
from aioparallel.testing.memory.refused import RETRIABLE, Refused

__all__ = ["NODE", "RETRY_BACKOFF", "Link", "answered"]

RETRY_BACKOFF = 0.05  # seconds between two attempts, like retry.backoff.ms

NODE: Final = 0
_KINDS: Final = {
    Request.COMMIT: ("commit",),
    Request.HEARTBEAT: ("heartbeat",),
    Request.CONSUMER_HEARTBEAT: ("heartbeat",),
    Request.SHARE_HEARTBEAT: ("heartbeat",),
}

T = TypeVar("T")


class Link:
    """The connection of a consumer to the broker, which is a single one whatever its number of nodes. Requests may
    overtake each other: a late one represents a request that an older connection still had in flight.

    The effect of a request is a plain function of its arrival time.
    """

    def __init__(self, broker: InMemoryBroker, group_id: str) -> None:
        self._broker = broker
        self._group_id = group_id
        self._loop: asyncio.AbstractEventLoop | None = None
        self.last_contacts = LastContacts(self._now)

    def _now(self) -> float:
        """The time of the loop it is used on, even after that loop's end."""
        self._loop = self._loop or asyncio.get_running_loop()
        return self._loop.time()

    async def call(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        """Send a request once. ``do(now)`` runs when it arrives, even if the caller has given up by then.

        Raises Refused for an error from the broker and for a broken connection, and TimeoutError after ``timeout``
        seconds.
        """
        with self.last_contacts.asking(NODE, *_KINDS.get(request, ())):
            try:
                return await self._attempt(request, do, timeout)
            except Refused as refused:
                if refused.code is not ErrorCode.NETWORK_EXCEPTION:
                    self.last_contacts.answered(NODE)
                raise

    async def _attempt(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        fault = self._broker.faults.decide(request)
        await asyncio.sleep(0)  # never answer in the same step of the loop
        if fault.is_harmless or not self._broker.is_reachable:
            return _carry_out(self._broker, fault, do, asyncio.get_running_loop().time())
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if not fault.is_request_lost:
            loop.call_later(fault.request_delay, self._deliver, fault, do, answer)
        async with asyncio.timeout(timeout):
            return await answer

    async def ask(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        """Send a request, and retry while the error is retriable.

        Raises TimeoutError after ``timeout`` seconds, NotAuthorized, and Refused for other errors.
        """
        async with asyncio.timeout(timeout):
            while True:
                try:
                    return await self.call(request, do, timeout)
                except Refused as refused:
                    if refused.code not in RETRIABLE:
                        raise self.explain(refused) from None
                await asyncio.sleep(RETRY_BACKOFF)

    def explain(self, refused: Refused) -> NotAuthorized | AuthenticationFailed | Refused:
        """The error for the client's user."""
        match refused.code:
            case ErrorCode.GROUP_AUTHORIZATION_FAILED:
                return NotAuthorized(f"group {self._group_id!r}")
            case ErrorCode.SASL_AUTHENTICATION_FAILED:
                return AuthenticationFailed("the in-memory broker", "login refused", "check the password")
            case _:
                return refused

    def _deliver(self, fault: Fault, do: Callable[[float], T], answer: asyncio.Future[T]) -> None:
        loop = asyncio.get_running_loop()
        arrive = answered(self._broker, fault, do, loop.time(), answer)
        if not fault.is_response_lost:
            loop.call_later(fault.response_delay, arrive)


def answered(
    broker: InMemoryBroker, fault: Fault, do: Callable[[float], T], now: float, answer: asyncio.Future[T]
) -> Callable[[], None]:
    """Carry out a request that has arrived at ``now``. Returns a function to call when its answer arrives."""
    settle: Callable[[], None]
    try:
        settle = partial(answer.set_result, _carry_out(broker, fault, do, now))
    except Refused as refused:
        settle = partial(answer.set_exception, refused)
    return lambda: None if answer.done() else settle()


def _carry_out(broker: InMemoryBroker, fault: Fault, do: Callable[[float], T], now: float) -> T:
    if not broker.is_reachable:
        raise Refused(ErrorCode.NETWORK_EXCEPTION)
    broker.advance(now)
    if fault.error is None:
        return do(now)
    if fault.is_carried_out:
        do(now)
    raise Refused(fault.error)
