"""A cluster as the contract tests of share groups see it; ``test_share_client.py`` runs against each one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import pytest

from aioparallel.group.share_client import ShareClient
from aioparallel.testing.memory import ShareGroupOptions

__all__ = ["ShareCluster", "ShareClusterKind", "ShareFeature", "ShareTiming", "TroubledCluster"]

ShareFeature = Literal[
    "cut",  # cut_off(), reconnect()
    "damage",  # corrupt()
    "denial",  # deny_topic(), deny_group()
    "eviction",  # expel(), forget_sessions()
    "group types",  # replace_group()
    "lost answers",  # lose_answer()
    "no share groups",  # without_share_groups()
    "nodes",  # move_leader()
    "silence",  # silence()
]
"""What not every cluster can do. Tests of it have the mark ``needs``; other clusters need not have the methods."""


class ShareTiming(NamedTuple):
    """Seconds that fit this cluster."""

    deadline: float
    """How long a test waits for any one condition before it fails."""
    lock_duration: float
    """Short enough to wait for, and long enough to acknowledge records in time on a busy machine."""


class ShareCluster(Protocol):
    """A running cluster for one test. Names of topics and groups are unique to the test."""

    @property
    def timing(self) -> ShareTiming:
        """Seconds that fit it."""

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; returns when it can be produced to."""

    async def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic."""

    async def delete_topic(self, name: str) -> None:
        """Delete the topic; returns when the name is free."""

    async def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, *, aborted: bool = False) -> None:
        """Append them in this order as one batch, perhaps in a transaction that is aborted. Returns once all are
        acknowledged, and the transaction has ended."""

    async def configure(self, group_id: str, options: ShareGroupOptions) -> None:
        """Set the options of a share group, as far as the cluster has them."""

    async def make_consumer_group(self, group_id: str, topic: str) -> None:
        """Create a consumer group with this id. Its member stays until the end of the test."""

    async def lag(self, group_id: str, topic: str) -> int:
        """The records of partition 0 that have not ended for the share group; -1: unknown."""

    def client(self, group_id: str) -> ShareClient:
        """A new client, not started. What a test forgets to stop, the end of the cluster stops."""

    def unreachable_client(self, group_id: str) -> ShareClient:
        """A new client with a bootstrap address without a listener."""


class TroubledCluster(ShareCluster, Protocol):
    """A cluster with features; each method names its own."""

    def cut_off(self) -> None:
        """Break all connections, until :meth:`reconnect`. Feature "cut"."""

    def reconnect(self) -> None:
        """Clients can connect again. Feature "cut"."""

    def silence(self) -> None:
        """Answer nothing from now on; connections stay. Feature "silence"."""

    def corrupt(self, topic: str, first: int, end: int) -> None:
        """Make offsets of partition 0 unreadable. Feature "damage"."""

    def deny_topic(self, topic: str) -> None:
        """Refuse access to the topic. Feature "denial"."""

    def deny_group(self, group_id: str) -> None:
        """Refuse access to the group. Feature "denial"."""

    def expel(self, group_id: str) -> None:
        """Remove all members from the group, as if their sessions had expired. Feature "eviction"."""

    def forget_sessions(self, group_id: str) -> None:
        """Evict all share sessions. Locks stay. Feature "eviction"."""

    async def replace_group(self, group_id: str, topic: str) -> None:
        """Delete the share group and create a consumer group with this id. Feature "group types"."""

    def lose_answer(self) -> None:
        """Carry out the next acknowledgements, and lose the answer. Feature "lost answers"."""

    def without_share_groups(self) -> None:
        """Become a cluster of version 4.1, or with ``share.version=0``. Feature "no share groups"."""

    def move_leader(self, topic: str) -> None:
        """Elect another leader for partition 0. Locks are lost. Feature "nodes"."""


@dataclass(frozen=True, kw_only=True)
class ShareClusterKind:
    """One entry of the registry: what is known of a cluster before it is started."""

    name: str
    open: Callable[[object], AbstractAsyncContextManager[ShareCluster]]
    """Given the value of ``broker_fixture`` (None without one), a context: the cluster for one test."""
    features: frozenset[ShareFeature] = frozenset()
    broker_fixture: str | None = None
    """A session fixture with what is too slow to start for each test."""
    loops: tuple[Literal["asyncio", "uvloop", "virtual"], ...] = ("asyncio", "uvloop")
    marks: tuple[pytest.MarkDecorator, ...] = ()
