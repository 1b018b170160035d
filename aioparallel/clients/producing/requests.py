"""Produce requests that are not answered yet, and the brokers that owe an answer for too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch

__all__ = ["SILENCE", "ProduceRequest", "Requests"]

SILENCE: Final = 3.0
"""Seconds without an answer after which a broker counts as silent. A broker that is well may need some, for it waits
for its followers."""
_FORGOTTEN: Final = 5.0
"""Seconds without a request to a node after which it owes nothing any more."""
_EARLY: Final = 0.001
"""Seconds that a timer may run before its time."""


class ProduceRequest:
    """Batches on their way to one node, at that address."""

    __slots__ = ("address", "batches", "node")

    def __init__(self, node: int, address: str, batches: Sequence[RecordBatch]) -> None:
        self.node = node
        self.address = address
        self.batches = batches


class Debt:
    """What one node owes: an answer ``since`` then; ``asked``: when it was last asked, or given up."""

    __slots__ = ("asked", "requests", "since")

    def __init__(self, now: float) -> None:
        self.since = self.asked = now
        self.requests: set[ProduceRequest] = set()

    def is_forgotten(self, now: float) -> bool:
        """Nobody has asked the node for so long that it owes nothing any more; it may be gone for good."""
        return not self.requests and now - self.asked > _FORGOTTEN


class Requests:
    """Those under way, by node. Plain: the time is passed in, in seconds on the loop's clock."""

    def __init__(self) -> None:
        self._debts: dict[int, Debt] = {}

    def begin(self, node: int, address: str, batches: Sequence[RecordBatch], now: float) -> ProduceRequest:
        """One goes on its way."""
        request = ProduceRequest(node, address, batches)
        debt = self._debts.get(node)
        if debt is None or debt.is_forgotten(now):
            debt = self._debts[node] = Debt(now)
        debt.asked = now
        debt.requests.add(request)
        return request

    def end(self, request: ProduceRequest, now: float, *, is_answered: bool) -> None:
        """Its answer is there, or none will come."""
        debt = self._debts[request.node]
        debt.requests.discard(request)
        debt.asked = now
        if not is_answered:
            return
        debt.since = now
        if not debt.requests:
            del self._debts[request.node]

    def count(self, node: int) -> int:
        """How many are on their way to this node."""
        debt = self._debts.get(node)
        return 0 if debt is None else len(debt.requests)

    def busy(self, most: int) -> Collection[int]:
        """Nodes to which so many are on their way."""
        return [node for node, debt in self._debts.items() if len(debt.requests) >= most]

    def silent(self, now: float) -> dict[int, float]:
        """Nodes that have owed an answer for :data:`SILENCE` seconds or more, and since when. One that is asked again
        and again without an answer goes on owing it."""
        return {
            node: debt.since
            for node, debt in self._debts.items()
            if now - debt.since >= SILENCE - _EARLY and not debt.is_forgotten(now)
        }

    def deserted(
        self, now: float, leader_of: Callable[[PartitionQueue], int | None], address_of: Callable[[int], str]
    ) -> list[int]:
        """Silent nodes that do not lead all that is on its way to them any more, or are at another address by now:
        somebody else may take it."""
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
        """When a node will have owed an answer for :data:`SILENCE`; None when nothing is on its way."""
        times = [debt.since + SILENCE for debt in self._debts.values() if debt.requests]
        return max(now, min(times)) if times else None
