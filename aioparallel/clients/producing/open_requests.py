"""Unanswered produce requests, and the brokers that have been silent for too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch

__all__ = ["SILENCE", "ProduceRequest", "Requests"]

SILENCE: Final = 3.0
"""Seconds without an answer after which a broker counts as silent. A healthy broker may need some seconds, because it
waits for its followers."""
MOST_IN_FLIGHT: Final = 3
"""Most requests in flight to one broker."""
_FORGOTTEN: Final = 5.0
"""Seconds without a request after which a node no longer counts as silent."""
_EARLY: Final = 0.001
"""Seconds that a timer may run early."""


@dataclass(eq=False, repr=False, slots=True)
class ProduceRequest:
    """Batches in flight to one node, at its address of that time."""

    node: int
    address: str
    batches: Sequence[RecordBatch]


@dataclass(slots=True)
class _Debt:
    """The unanswered requests of one node."""

    since: float
    """When it began to owe an answer."""
    asked: float
    """When its last request began or ended."""
    requests: set[ProduceRequest] = field(default_factory=set)

    def is_forgotten(self, now: float) -> bool:
        """Whether the node has had no request for so long that its silence means nothing; it may be gone for good."""
        return not self.requests and now - self.asked > _FORGOTTEN


class Requests:
    """Unanswered requests by node. Times are passed in, as seconds on the loop's clock."""

    def __init__(self) -> None:
        self._debts: dict[int, _Debt] = {}

    def begin(self, node: int, address: str, batches: Sequence[RecordBatch], now: float) -> ProduceRequest:
        request = ProduceRequest(node, address, batches)
        debt = self._debts.get(node)
        if debt is None or debt.is_forgotten(now):
            debt = self._debts[node] = _Debt(now, now)
        debt.asked = now
        debt.requests.add(request)
        return request

    def end(self, request: ProduceRequest, now: float, *, is_answered: bool) -> None:
        debt = self._debts[request.node]
        debt.requests.discard(request)
        debt.asked = now
        if not is_answered:
            return
        debt.since = now
        if not debt.requests:
            del self._debts[request.node]

    def count(self, node: int) -> int:
        debt = self._debts.get(node)
        return 0 if debt is None else len(debt.requests)

    @property
    def busy(self) -> Collection[int]:
        """Nodes with the maximum of requests in flight."""
        return [node for node, debt in self._debts.items() if len(debt.requests) >= MOST_IN_FLIGHT]

    def silent(self, now: float) -> dict[int, float]:
        """Nodes that have owed an answer for :data:`SILENCE` seconds or more, and since when. Repeated requests without
        an answer do not restart the time."""
        return {
            node: debt.since
            for node, debt in self._debts.items()
            if now - debt.since >= SILENCE - _EARLY and not debt.is_forgotten(now)
        }

    def deserted(
        self, now: float, leader_of: Callable[[PartitionQueue], int | None], address_of: Callable[[int], str]
    ) -> list[int]:
        """Silent nodes whose requests should go elsewhere: a partition has another leader, or the node has another
        address."""
        found: list[int] = []
        for node in self.silent(now):
            requests = self._debts[node].requests
            leaders = {leader_of(batch.queue) for request in requests for batch in request.batches}
            if any(leader is not None and leader >= 0 and leader != node for leader in leaders) or any(
                request.address != address_of(node) for request in requests
            ):
                found.append(node)
        return found

    def next_look(self, now: float) -> float | None:
        """When a node will have been silent for :data:`SILENCE` seconds; None if nothing is in flight."""
        times = [debt.since + SILENCE for debt in self._debts.values() if debt.requests]
        return max(now, min(times)) if times else None
