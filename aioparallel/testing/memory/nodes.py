"""The nodes of the in-memory broker: the leader of each partition, and which nodes answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.topics import Topics

if TYPE_CHECKING:
    from aioparallel.testing.memory.connection import Connection

__all__ = ["Nodes"]


class Nodes(Topics):
    """Topics on nodes 1 to ``nodes``. Initially partition 0 of every topic is on node 1, partition 1 on node 2, and so
    on."""

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise ConfigurationError("nodes", nodes, "at least 1")
        super().__init__()
        self.numbers = range(1, nodes + 1)
        """The numbers of the nodes."""
        self._moved: dict[TopicPartition, int] = {}
        # Requests that wait at a hung node, oldest first.
        self._hung: dict[int, list[Callable[[], None]]] = {}
        self._stopped: set[int] = set()
        self._stops: Counter[int] = Counter()
        self._connections: dict[int, dict[Connection, None]] = {number: {} for number in self.numbers}

    # -- leaders

    def leader(self, partition: TopicPartition) -> int | None:
        """The node that leads the partition; None while that node is stopped. Raises ConfigurationError."""
        self._log(partition)
        node = self._moved.get(partition) or self.numbers[partition.partition % len(self.numbers)]
        return None if node in self._stopped else node

    def move_leader(self, partition: TopicPartition, node: int) -> None:
        """Make this node the partition's leader, as an election does. The log and the producers' state move with it.
        Clients learn of it from their next metadata. Raises ConfigurationError."""
        self._log(partition)
        self._moved[partition] = self._checked(node)

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its records, settings and producer state."""
        super().delete_topic(name)
        self._moved = {partition: node for partition, node in self._moved.items() if partition.topic != name}

    # -- outages

    def hang(self, node: int) -> None:
        """Make the node answer nothing, like a stopped process (SIGSTOP), until :meth:`unhang`.

        It remains the leader of its partitions, and connections to it stay open. Requests wait there, even if their
        sender has given up or closed the connection. Only requests over a connection that was opened while the node
        hangs are lost with it, because a client sends nothing before the node has answered its first request. Does
        nothing for a stopped node.
        """
        if self._checked(node) not in self._stopped:
            self._hung.setdefault(node, [])

    def unhang(self, node: int) -> None:
        """Let the node continue: it handles waiting requests in order. It accepts batches for partitions that it leads
        now, and refuses others (NOT_LEADER_OR_FOLLOWER)."""
        for carry_out in self._hung.pop(self._checked(node), ()):
            carry_out()

    def stop_node(self, node: int) -> None:
        """Stop the node, even if it hangs. Its connections break and requests to it are lost. Its partitions have no
        leader until :meth:`start_node` or :meth:`move_leader`."""
        self._stopped.add(self._checked(node))
        self._stops[node] += 1
        self._hung.pop(node, None)
        for connection in tuple(self._connections[node]):
            connection.close()

    def start_node(self, node: int) -> None:
        """Start a stopped node."""
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

    def attach(self, node: int, connection: Connection) -> None:
        """A connection was opened."""
        self._connections[node][connection] = None

    def detach(self, node: int, connection: Connection) -> None:
        """A connection was closed."""
        self._connections[node].pop(connection, None)

    def connections(self, node: int) -> int:
        """Number of open connections."""
        return len(self._connections[node])

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
