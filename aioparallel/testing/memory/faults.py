"""What goes wrong between a client and the in-memory broker: by script, or by seeded chance."""

from __future__ import annotations

import enum
import random
import sys
from collections import deque
from dataclasses import dataclass
from typing import Final

from aioparallel.codes import ErrorCode
from aioparallel.errors import ConfigurationError

__all__ = ["Fault", "Faults", "Request"]


class Request(enum.Enum):
    """The kinds of request a client sends."""

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
    """With a transactional id or without."""
    TXN_OFFSETS = "txn offset commit"
    END_TXN = "end txn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request. The default is nothing: it is answered at once.

    A request that arrives after its sender gave up is carried out all the same. ``Fault(request_delay=5)`` on
    a commit with a shorter deadline is a *late commit*: it reaches the coordinator with the generation it was
    sent with, perhaps long after a rebalance, or after a later commit of the same generation.
    """

    request_delay: float = 0.0
    """Seconds from the client to the broker."""
    response_delay: float = 0.0
    """Seconds from the broker to the client."""
    error: ErrorCode | None = None
    """The broker answers with this, and does nothing."""
    is_carried_out: bool = False
    """With ``error``: it is carried out all the same. So does a leader that has written a batch and waits in vain for
    its followers (REQUEST_TIMED_OUT)."""
    is_request_lost: bool = False
    """It never arrives: the sender waits until its deadline, and nothing was done."""
    is_response_lost: bool = False
    """It is carried out, but the sender waits until its deadline."""

    def __post_init__(self) -> None:
        if self.error is not None and not isinstance(self.error, ErrorCode):
            raise ConfigurationError("error", self.error, "an ErrorCode of aioparallel.testing.memory, or None")
        if self.is_carried_out and self.error is None:
            raise ConfigurationError("is_carried_out", True, "only together with an error")
        for option in ("request_delay", "response_delay"):
            value = getattr(self, option)
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigurationError(option, value, "seconds, not below 0")

    @property
    def is_harmless(self) -> bool:
        """Whether the request is answered at once."""
        return self == HARMLESS


HARMLESS = Fault()


_TO_A_NODE: Final = frozenset(
    {Request.CONNECT, Request.METADATA, Request.IDENTIFY, Request.PRODUCE, Request.TXN_OFFSETS, Request.END_TXN}
)
"""Requests that go to one node of the broker; all others know only the broker as a whole."""

_Place = tuple[Request, int | None]
"""A kind of request, and the node that it goes to; None for any."""


class Faults:
    """Decides what happens to each request, in this order: script, chance, standing fault, latency.

    Each of them holds for a kind of request; with ``node`` only for those to this node of the broker, and then before
    what holds for all. Nodes are told apart where producers ask them (``CONNECT``, ``METADATA``, ``IDENTIFY``,
    ``PRODUCE``).

    ``rng`` is the only source of chance; the same seed and the same requests give the same faults. ``nodes``: how many
    the broker has; None: any number.

    What could never happen is a ConfigurationError: a kind of request or a fault that is none, a node that the broker
    has not, or one for requests that do not go to a node.
    """

    def __init__(self, rng: random.Random | None = None, *, nodes: int | None = None) -> None:
        self._rng = rng or random.Random(0)
        self._nodes = range(1, sys.maxsize if nodes is None else nodes + 1)
        self._scripts: dict[_Place, deque[Fault]] = {}
        self._chances: dict[_Place, list[tuple[float, Fault]]] = {}
        self._standing: dict[_Place, Fault] = {}
        self._latency: dict[_Place, tuple[float, float]] = {}

    def script(self, request: Request, *faults: Fault, node: int | None = None) -> None:
        """The next requests of this kind meet these faults, one each, in this order."""
        place = self._place(request, node, *faults)
        self._scripts.setdefault(place, deque()).extend(faults)

    def sometimes(self, request: Request, probability: float, fault: Fault, *, node: int | None = None) -> None:
        """Each request of this kind meets the fault with this probability (0 to 1)."""
        if not 0 <= probability <= 1:
            raise ConfigurationError("probability", probability, "from 0 to 1")
        self._chances.setdefault(self._place(request, node, fault), []).append((probability, fault))

    def always(self, request: Request, fault: Fault, *, node: int | None = None) -> None:
        """Every request of this kind meets the fault, until :meth:`heal`."""
        self._standing[self._place(request, node, fault)] = fault

    def latency(self, request: Request, shortest: float, longest: float, *, node: int | None = None) -> None:
        """Requests of this kind take a random time to arrive: seconds, evenly spread."""
        if not 0 <= shortest <= longest:
            raise ConfigurationError("latency", (shortest, longest), "seconds, 0 <= shortest <= longest")
        self._latency[self._place(request, node)] = (shortest, longest)

    def heal(self, *requests: Request) -> None:
        """Forget all faults of these kinds, whatever the node; without arguments, of every kind."""
        for request in requests:
            self._place(request, None)
        for faults in (self._scripts, self._chances, self._standing, self._latency):
            for place in [place for place in faults if not requests or place[0] in requests]:
                del faults[place]

    def decide(self, request: Request, node: int | None = None) -> Fault:
        """What happens to the request that is being sent now; ``node``: where to, if that is known."""
        places = ((request, None),) if node is None else ((request, node), (request, None))
        for look in (self._scripted, self._by_chance, self._standing.get, self._late):
            for place in places:
                if (fault := look(place)) is not None:
                    return fault
        return HARMLESS

    def _place(self, request: Request, node: int | None, *faults: Fault) -> _Place:
        """Where these hold. Raises ConfigurationError where they could never happen."""
        if not isinstance(request, Request):
            raise ConfigurationError("request", request, f"a Request, one of {', '.join(map(str, Request))}")
        for fault in faults:
            if not isinstance(fault, Fault):
                raise ConfigurationError("fault", fault, "a Fault")
        if node is not None:
            if request not in _TO_A_NODE:
                raise ConfigurationError(
                    "node", node, f"leave it out, a {request.value} request goes to no single node"
                )
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
