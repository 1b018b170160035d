"""Faults between a client and the in-memory broker: scripted, or random with a seed."""

from __future__ import annotations

import enum
import random
import sys
from collections import deque
from dataclasses import dataclass
from typing import Final

from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ConfigurationError

__all__ = ["Fault", "Faults", "Request"]


class Request(enum.Enum):
    """The kinds of requests that clients send."""

    CONNECT = "connect"
    METADATA = "metadata"
    FETCH = "fetch"
    LIST_OFFSETS = "list offsets"
    JOIN = "join group"
    SYNC = "sync group"
    HEARTBEAT = "heartbeat"
    LEAVE = "leave group"
    COMMIT = "offset commit"
    OFFSET_FETCH = "offset fetch"
    PRODUCE = "produce"
    IDENTIFY = "init producer id"
    """With or without a transactional id."""
    TXN_OFFSETS = "txn offset commit"
    END_TXN = "end txn"
    CONSUMER_HEARTBEAT = "consumer group heartbeat"
    """It also joins and leaves a group of the new protocol."""
    SHARE_HEARTBEAT = "share group heartbeat"
    """It also joins and leaves a share group."""
    SHARE_FETCH = "share fetch"
    SHARE_ACKNOWLEDGE = "share acknowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request. By default nothing: it is answered at once.

    A request that arrives after its sender has given up is still carried out. ``Fault(request_delay=5)`` on a commit
    with a shorter timeout is a *late commit*: it reaches the coordinator with its original generation, perhaps long
    after a rebalance, or after a later commit of the same generation.
    """

    request_delay: float = 0.0
    """Seconds from the client to the broker."""
    response_delay: float = 0.0
    """Seconds from the broker to the client."""
    error: ErrorCode | None = None
    """The broker answers with this error, and does nothing."""
    is_carried_out: bool = False
    """With ``error``: the request is carried out nevertheless, as by a leader that has written a batch and waits in
    vain for its followers (REQUEST_TIMED_OUT)."""
    is_request_lost: bool = False
    """The request never arrives. The sender waits for its timeout, and nothing was done."""
    is_response_lost: bool = False
    """The request is carried out, but the sender waits for its timeout."""

    def __post_init__(self) -> None:
        if self.error is not None and not isinstance(self.error, ErrorCode):
            raise ConfigurationError("error", self.error, "an ErrorCode of aioparallel.testing.memory, or None")
        if self.is_carried_out and self.error is None:
            raise ConfigurationError("is_carried_out", True, "only together with an error")
        for option in ("request_delay", "response_delay"):
            value = getattr(self, option)
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigurationError(option, value, "seconds, at least 0")

    @property
    def is_harmless(self) -> bool:
        """Whether the request is answered at once."""
        return self == HARMLESS


HARMLESS = Fault()


_TO_A_NODE: Final = frozenset(
    {
        Request.CONNECT,
        Request.METADATA,
        Request.IDENTIFY,
        Request.PRODUCE,
        Request.TXN_OFFSETS,
        Request.END_TXN,
        Request.SHARE_FETCH,
        Request.SHARE_ACKNOWLEDGE,
    }
)
"""Requests to a single node; all others are for the broker as a whole."""

_Place = tuple[Request, int | None]
"""A kind of request and its node; None for any node."""


class Faults:
    """Decides what happens to each request, in this order: script, chance, permanent fault, latency.

    Each applies to a kind of request. With ``node`` it applies only to requests to that node, and precedes those for
    all nodes. Only producers' requests have a node (``CONNECT``, ``METADATA``, ``IDENTIFY``, ``PRODUCE``), and those of
    members of share groups to leaders (``SHARE_FETCH``, ``SHARE_ACKNOWLEDGE``).

    ``rng`` is the only source of randomness: the same seed and requests give the same faults. ``nodes``: number of
    nodes of the broker; None: any number.

    Faults that could never happen raise ConfigurationError: an invalid request or fault, a node that does not exist, or
    a node for requests without one.
    """

    def __init__(self, rng: random.Random | None = None, *, nodes: int | None = None) -> None:
        self._rng = rng or random.Random(0)
        self._nodes = range(1, sys.maxsize if nodes is None else nodes + 1)
        self._scripts: dict[_Place, deque[Fault]] = {}
        self._chances: dict[_Place, list[tuple[float, Fault]]] = {}
        self._standing: dict[_Place, Fault] = {}
        self._latency: dict[_Place, tuple[float, float]] = {}

    def script(self, request: Request, *faults: Fault, node: int | None = None) -> None:
        """Apply these faults to the next requests of this kind, one each, in this order."""
        place = self._place(request, node, *faults)
        self._scripts.setdefault(place, deque()).extend(faults)

    def sometimes(self, request: Request, probability: float, fault: Fault, *, node: int | None = None) -> None:
        """Apply the fault to each request of this kind with this probability (0 to 1)."""
        if not 0 <= probability <= 1:
            raise ConfigurationError("probability", probability, "from 0 to 1")
        self._chances.setdefault(self._place(request, node, fault), []).append((probability, fault))

    def always(self, request: Request, fault: Fault, *, node: int | None = None) -> None:
        """Apply the fault to every request of this kind, until :meth:`heal`."""
        self._standing[self._place(request, node, fault)] = fault

    def latency(self, request: Request, shortest: float, longest: float, *, node: int | None = None) -> None:
        """Delay requests of this kind by a random time in seconds, uniformly distributed."""
        if not 0 <= shortest <= longest:
            raise ConfigurationError("latency", (shortest, longest), "seconds, 0 <= shortest <= longest")
        self._latency[self._place(request, node)] = (shortest, longest)

    def heal(self, *requests: Request) -> None:
        """Remove all faults of these kinds, for all nodes; without arguments, of every kind."""
        for request in requests:
            self._place(request, None)
        for faults in (self._scripts, self._chances, self._standing, self._latency):
            for place in [place for place in faults if not requests or place[0] in requests]:
                del faults[place]

    def decide(self, request: Request, node: int | None = None) -> Fault:
        """The fault of a request that is being sent. ``node``: its target, if known."""
        places = ((request, None),) if node is None else ((request, node), (request, None))
        for look in (self._scripted, self._by_chance, self._standing.get, self._late):
            for place in places:
                if (fault := look(place)) is not None:
                    return fault
        return HARMLESS

    def _place(self, request: Request, node: int | None, *faults: Fault) -> _Place:
        """The place of these faults. Raises ConfigurationError if they could never happen."""
        if not isinstance(request, Request):
            raise ConfigurationError("request", request, f"a Request, one of {', '.join(map(str, Request))}")
        for fault in faults:
            if not isinstance(fault, Fault):
                raise ConfigurationError("fault", fault, "a Fault")
        if node is not None:
            if request not in _TO_A_NODE:
                raise ConfigurationError("node", node, f"leave it out, a {request.value} request is for no single node")
            if node not in self._nodes:
                raise ConfigurationError("node", node, f"1 to {self._nodes[-1]}")
        return request, node

    def _scripted(self, place: _Place) -> Fault | None:
        scripted = self._scripts.get(place)
        return scripted.popleft() if scripted else None

    def _by_chance(self, place: _Place) -> Fault | None:
        for probability, fault in self._chances.get(place, ()):
            if self._rng.random() < probability:
                return fault
        return None

    def _late(self, place: _Place) -> Fault | None:
        span = self._latency.get(place)
        return None if span is None else Fault(request_delay=self._rng.uniform(*span))
