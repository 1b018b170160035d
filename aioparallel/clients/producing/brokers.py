"""What a producer needs from a Kafka cluster. Clients implement it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.produce_answers import Answer
from aioparallel.records.record import TopicPartition

__all__ = ["Brokers"]


class Brokers(Protocol):
    """Connections to all brokers of a cluster. Each method makes one attempt.

    There are no connections before :meth:`connect`. The constructor takes a function to call after each metadata
    update.
    """

    @property
    def is_connected(self) -> bool:
        """Whether :meth:`connect` has succeeded. Connections that break later are reopened."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be sent permanently: the addresses now belong to another cluster. No connection is opened."""

    async def connect(self, timeout: float) -> None:
        """Connect to any broker and learn the others from it.

        Raises BrokerUnreachable or NotAuthorized within ``timeout`` seconds."""

    async def identify(self) -> Identity:
        """Obtain an unused producer id from any broker that answers.

        Raises NotAuthorized, and OSError or TimeoutError for transient failures."""

    async def produce(self, node: int, batches: Sequence[RecordBatch]) -> list[Answer]:
        """Send one request with these batches. Returns an answer for each; raises nothing."""

    def leader_of(self, queue: PartitionQueue) -> int | None:
        """The node that leads the partition; -1 if it has no leader, None if the partition is unknown."""

    def address_of(self, node: int) -> str:
        """The node's ``host:port`` for messages; empty if unknown."""

    def partitions_of(self, topic: str) -> dict[int, bool]:
        """The topic's partitions in the current metadata, and whether each has a leader."""

    def refused_topics(self) -> Collection[str]:
        """Topics that this user may not describe."""

    def doubt(self) -> None:
        """Report that the metadata may be stale, so that it is updated."""

    async def update(self, topics: Collection[str]) -> None:
        """Add these topics to the metadata and update it once. Raises OSError for transient failures."""

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """Query all partitions of these topics. Creates no topic. Raises TimeoutError, and :attr:`failure`."""

    def cut(self, node: int) -> None:
        """Close the connection to this broker.

        Requests waiting for an answer from it are answered with ``Verdict.AGAIN``. Data still in the send buffer is
        discarded."""

    async def close(self, timeout: float) -> None:
        """Close all connections within ``timeout`` seconds. Raises nothing."""
