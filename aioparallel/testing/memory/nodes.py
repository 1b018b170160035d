"""The nodes of the in-memory broker: the leader of each partition, and which nodes answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Nodes", "Peer"]


class Peer(Protocol):
    """A client's end of a connection to a node."""

    def close(self) -> None:
        """The connection broke."""


class Nodes:
    """Nodes 1 to ``count``. Initially partition 0 of every topic is on node 1, partition 1 on node 2, and so on."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigurationError("nodes", count, "at least 1")
        self.numbers = range(1, count + 1)
        self._moved: dict[TopicPartition, int] = {}
        # Requests that wait at a hung node, oldest first.
        self._hung: dict[int, list[Callable[[], None]]] = {}
        self._stopped: set[int] = set()
        self._stops: Counter[int] = Counter()
        self._peers: dict[int, dict[Peer, None]] = {number: {} for number in self.numbers}

    # -- leaders

    def leader(self, partition: TopicPartition) -> int | None:
        """The node that leads the partition; None while that node is stopped."""
        node = self._moved.get(partition) or self.numbers[partition.partition % len(self.numbers)]
        return None if node in self._stopped else node

    def lead(self, partition: TopicPartition, node: int) -> None:
        """Make this node the partition's leader."""
        self._moved[partition] = self._checked(node)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        for partition in [partition for partition in self._moved if partition.topic == topic]:
            del self._moved[partition]

    # -- outages

    def hang(self, node: int) -> None:
        """Let requests wait from now on. Does nothing for a stopped node."""
        if self._checked(node) not in self._stopped:
            self._hung.setdefault(node, [])

    def unhang(self, node: int) -> None:
        """Carry out the waiting requests, in the order of their arrival."""
        for carry_out in self._hung.pop(self._checked(node), ()):
            carry_out()

    def stop(self, node: int) -> None:
        """Break the node's connections. Its waiting requests are lost."""
        self._stopped.add(self._checked(node))
        self._stops[node] += 1
        self._hung.pop(node, None)
        for peer in tuple(self._peers[node]):
            peer.close()

    def start(self, node: int) -> None:
        """Accept connections again."""
        self._stopped.discard(self._checked(node))

    def is_hung(self, node: int) -> bool:
        """Whether requests wait at this node."""
        return node in self._hung

    def is_stopped(self, node: int) -> bool:
        """Whether the node refuses connections."""
        return node in self._stopped

    # -- for connections

    def stops(self, node: int) -> int:
        """Number of times the node has stopped. Requests sent before the last time do not arrive."""
        return self._stops[node]

    def attach(self, node: int, peer: Peer) -> None:
        """A connection was opened."""
        self._peers[node][peer] = None

    def detach(self, node: int, peer: Peer) -> None:
        """A connection was closed."""
        self._peers[node].pop(peer, None)

    def connections(self, node: int) -> int:
        """Number of open connections."""
        return len(self._peers[node])

    def arrive(self, node: int, carry_out: Callable[[], None]) -> None:
        """A request arrives at the node. It is carried out now, or when a hung node continues."""
        if (waiting := self._hung.get(node)) is not None:
            waiting.append(carry_out)
        else:
            carry_out()

    def _checked(self, node: int) -> int:
        if node not in self.numbers:
            raise ConfigurationError("node", node, f"1 to {len(self.numbers)}")
        return node
