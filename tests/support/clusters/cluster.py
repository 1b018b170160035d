"""A cluster as the contract tests see it: somewhere to produce to, and clients that consume from it.

Every test in ``test_client_*.py`` runs against every registered cluster that has the features the test
needs (``@pytest.mark.needs("several members")``); see ``conftest.py`` for the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import pytest

from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client
from aioparallel.persistence.transactions import TransactionalProducer
from aioparallel.records.record import Headers, Record, TopicPartition

__all__ = [
    "Cluster",
    "ClusterKind",
    "Compression",
    "Feature",
    "Isolation",
    "Produced",
    "Timing",
    "Transaction",
]

Feature = Literal[
    "added partitions",  # add_partitions(), and members that learn of them within the deadline
    "classic protocol",  # members join again in each rebalance; older generations and replaced members are fenced
    "compacted topics",  # create_topic(compacted=True)
    "compression",  # produce(compression=...)
    "consumer protocol",  # each member gives up what moves, and goes on with the rest (KIP-848)
    "cooperative",  # client(cooperative=True): only what moves is revoked, in the classic protocol
    "eviction",  # evict()
    "exactly once",  # transactional_producer(): transactions of version 2, with offsets fenced by generation
    "message limit",  # batches above about 1 MiB are refused, outputs above max_request_size (3 MiB) as well
    "metadata limit",  # offset.metadata.max.bytes is kept, at its default of 4096 UTF-16 characters
    "producers",  # not where another kind differs only in its members of groups
    "pattern",  # a pattern subscription takes in topics created later, within the deadline
    "static members",  # client(instance_id=...)
    "several members",  # more than one member in a group
    "timestamps",  # records keep the given timestamp, offsets_for_times() looks them up
    "transactions",  # open_transaction(), client(isolation_level="read_committed")
    "truncation",  # delete_records()
]
"""What not every cluster can do. The rest of the protocol every cluster has."""

Isolation = Literal["read_uncommitted", "read_committed"]
Compression = Literal["gzip", "snappy", "lz4", "zstd"]


class Timing(NamedTuple):
    """Seconds that fit this cluster: short, but not shorter than it accepts."""

    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    deadline: float
    """How long a test waits for any one condition (a join, a rebalance, a record) before it fails."""


class Produced(NamedTuple):
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    """Milliseconds since the epoch; None: now."""


class Transaction(Protocol):
    """A transaction whose records are in the log already; :meth:`end` decides about them."""

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; returns when readers can see it (the markers are written)."""


class Cluster(Protocol):
    """A running cluster for one test. Names of topics and groups are unique to the test."""

    @property
    def name(self) -> str:
        """How test ids name it."""

    @property
    def timing(self) -> Timing:
        """Seconds that fit it; also the defaults of :meth:`client`."""

    async def create_topic(self, name: str, partitions: int = 1, *, compacted: bool = False) -> None:
        """Create a topic; returns when it can be produced to. ``compacted=True`` is only given with that feature."""

    async def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to ``total`` partitions. Feature "added partitions"."""

    async def produce(
        self,
        topic: str,
        records: Sequence[Produced],
        partition: int = 0,
        *,
        compression: Compression | None = None,
    ) -> list[int]:
        """Append in this order and return the offsets, once all are acknowledged. ``compression`` is only
        given where the cluster has the feature."""

    async def open_transaction(self, topic: str, records: Sequence[Produced], partition: int = 0) -> Transaction:
        """Begin a transaction and append these records in it: acknowledged, undecided. Feature
        "transactions"."""

    async def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Move the start of the log to offset ``before``. Feature "truncation"."""

    async def evict(self, group_id: str, member_id: str) -> None:
        """Have the coordinator forget this member, as it does when a session expires: its next heartbeat or
        commit is refused as of an unknown member. (A LeaveGroup request in its name does it.) Feature
        "eviction"."""

    def client(
        self,
        group_id: str,
        *,
        isolation_level: Isolation = "read_uncommitted",
        cooperative: bool = False,
        session_timeout: float | None = None,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float | None = None,
        instance_id: str | None = None,
    ) -> Client:
        """A new client, not started. What a test forgets to stop, the end of the cluster stops.

        None means the value in :attr:`timing`. ``cooperative=True`` is only given with that feature; ``instance_id``,
        its ``group.instance.id``, with "static members".
        """

    async def records(self, topic: str) -> list[Record]:
        """All records of a topic, partition by partition in the order of their offsets."""

    def producer(self, *, delivery_timeout: float | None = None) -> Producer:
        """A new producer, not started; it notices new metadata within the deadline. What a test forgets to stop, the
        end of the cluster stops. Without ``delivery_timeout`` it is the deadline of :attr:`timing`."""

    def transactional_producer(self, group_id: str, *, instance_id: str | None = None) -> TransactionalProducer:
        """The same for transactions with the offsets of this group; connected by its first request. Feature "exactly
        once". ``instance_id``: the member's, which commits them."""

    def unreachable_producer(self, *, delivery_timeout: float) -> Producer:
        """A new producer with a bootstrap address without a listener."""

    def unreachable_client(self, group_id: str) -> Client:
        """A new client with a bootstrap address without a listener."""


@dataclass(frozen=True, kw_only=True)
class ClusterKind:
    """One entry of the registry: what is known of a cluster before it is started."""

    name: str
    features: frozenset[Feature]
    open: Callable[[object], AbstractAsyncContextManager[Cluster]]
    """Given the value of ``broker_fixture`` (None without one), a context: the cluster for one test."""
    broker_fixture: str | None = None
    """A session fixture (not a coroutine) with what is too slow to start for each test."""
    loops: tuple[Literal["asyncio", "uvloop"], ...] = ("asyncio", "uvloop")
    """The event loops to run on."""
    marks: tuple[pytest.MarkDecorator, ...] = ()
    """Marks for each test of it, such as ``pytest.mark.real``."""
