"""What a producer needs of a Kafka cluster. Clients implement it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioparallel.clients.producing.answers import Answer
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.records import TopicPartition

__all__ = ["Brokers"]


class Brokers(Protocol):
    """Connections to all brokers of a cluster; none before :meth:`connect`. One attempt each for what is asked.

    Whenever the metadata is new, the function given to its constructor is called.
    """

    @property
    def is_connected(self) -> bool:
        """Whether :meth:`connect` has succeeded; connections that break after that are made again."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be sent any more, for good: another cluster is there. No connection is made then."""

    async def connect(self, timeout: float) -> None:
        """Find a broker and learn from it who the others are. Raises BrokerUnreachable or NotAuthorized within
        ``timeout`` seconds."""

    async def identify(self) -> Identity:
        """A producer id that nobody else has, from any broker that answers. Raises NotAuthorized, and OSError or
        TimeoutError for what passes."""

    async def produce(self, node: int, batches: Sequence[RecordBatch]) -> list[Answer]:
        """One request with these batches, and what became of each. Raises nothing."""

    def leader_of(self, queue: PartitionQueue) -> int | None:
        """The node that leads the partition; -1 or None where there is none, or it is not known."""

    def address_of(self, node: int) -> str:
        """How messages name the node, ``host:port``; empty where it is not known."""

    def partitions_of(self, topic: str) -> dict[int, bool]:
        """The topic's partitions as they are known now, and whether each has a leader."""

    def refused_topics(self) -> Collection[str]:
        """Topics that this user may not even ask about."""

    def doubt(self) -> None:
        """The metadata may be wrong, or old: have it updated."""

    async def update(self, topics: Collection[str]) -> None:
        """Follow these topics, and have the metadata updated once. Raises OSError for what passes."""

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics, asked for now. Creates none. Raises TimeoutError, and :attr:`failure`."""

    def cut(self, node: int) -> None:
        """Break the connection to this broker: what is on its way there gets no further than it is, and requests
        that wait for it are answered with ``Verdict.AGAIN``."""

    async def close(self, timeout: float) -> None:
        """Close all connections, within ``timeout`` seconds; raises nothing."""
