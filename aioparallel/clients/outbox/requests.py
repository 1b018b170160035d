"""Produce requests that are not answered yet, and the brokers that owe an answer for too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from aioparallel.clients.outbox.partition_queue import Batch, PartitionQueue

__all__ = ["SILENCE", "Request", "Requests"]

SILENCE: Final = 3.0
"""Seconds without an answer after which a broker counts as silent. A broker that is well may need some, for it waits
for its followers."""
_EARLY: Final = 0.001
"""Seconds that a timer may run before its time."""


class Request:
    """Batches on their way to one node, since ``sent_at`` (seconds on the loop's clock)."""

    __slots__ = ("batches", "node", "sent_at")

    def __init__(self, node: int, batches: Sequence[Batch], sent_at: float) -> None:
        self.node = node
        self.batches = batches
        self.sent_at = sent_at


class Requests:
    """Those under way, in the order in which they were sent. Plain: the time is passed in."""

    def __init__(self) -> None:
        self._under_way: dict[Request, None] = {}
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, node: int, batches: Sequence[Batch], now: float) -> Request:
        """One goes on its way."""
        request = Request(node, batches, now)
        self._under_way[request] = None
        self._counts[node] += 1
        return request

    def end(self, request: Request) -> None:
        """Its answer is there, or none will come."""
        del self._under_way[request]
        self._counts[request.node] -= 1

    def count(self, node: int) -> int:
        """How many are on their way to this node."""
        return self._counts[node]

    def busy(self, most: int) -> Collection[int]:
        """Nodes to which so many are on their way."""
        return [node for node, count in self._counts.items() if count >= most]

    def silent(self, now: float) -> dict[int, float]:
        """Nodes that owe an answer for :data:`SILENCE` seconds or more, and since when."""
        found: dict[int, float] = {}
        for request in self._under_way:
            if now - request.sent_at < SILENCE - _EARLY:
                break
            found.setdefault(request.node, request.sent_at)
        return found

    def deserted(self, now: float, leader_of: Callable[[PartitionQueue], int | None]) -> list[int]:
        """Silent nodes that do not lead all that is on its way to them any more: somebody else may take it."""
        silent = self.silent(now)
        found: set[int] = set()
        for request in self._under_way:
            if request.node in silent and request.node not in found:
                leaders = {leader_of(batch.queue) for batch in request.batches}
                if any(leader is not None and leader >= 0 and leader != request.node for leader in leaders):
                    found.add(request.node)
        return sorted(found)

    def next_look(self, now: float) -> float | None:
        """When the oldest has been on its way for :data:`SILENCE`; None when there is none."""
        for request in self._under_way:
            return max(now, request.sent_at + SILENCE)
        return None
