"""The in-memory broker as a cluster for the contract tests of share groups, also in virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, get_args

from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryClient,
    InMemoryShareClient,
    Request,
    ShareGroupOptions,
)
from tests.support.clusters.member import Member
from tests.support.clusters.share_cluster import ShareCluster, ShareClusterKind, ShareFeature, ShareTiming

__all__ = ["KINDS", "MemoryShareCluster"]

FEATURES: Final[frozenset[ShareFeature]] = frozenset(get_args(ShareFeature))
_ASKED: Final = (Request.CONNECT, Request.METADATA, Request.SHARE_HEARTBEAT)
"""Requests to no node in particular."""


class MemoryShareCluster:
    """A broker of two nodes for each test; see :class:`ShareCluster`."""

    def __init__(self, timing: ShareTiming) -> None:
        self.timing = timing
        self.broker = InMemoryBroker(nodes=2)
        self._clients: list[InMemoryShareClient | InMemoryClient] = []

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        self.broker.create_topic(name, partitions)

    async def add_partitions(self, topic: str, total: int) -> None:
        self.broker.add_partitions(topic, total)

    async def delete_topic(self, name: str) -> None:
        self.broker.delete_topic(name)

    async def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, *, aborted: bool = False) -> None:
        transaction = self.broker.begin_transaction() if aborted else None
        self.broker.append_batch(topic, values, partition=partition, transaction=transaction)
        if transaction is not None:
            self.broker.end_transaction(transaction, commit=False)

    async def configure(self, group_id: str, options: ShareGroupOptions) -> None:
        self.broker.configure_share_group(group_id, options)

    async def make_consumer_group(self, group_id: str, topic: str) -> None:
        client = InMemoryClient(self.broker, group_id)
        self._clients.append(client)
        await Member(client, self.timing.deadline).join([topic])

    async def lag(self, group_id: str, topic: str) -> int:
        partition = TopicPartition(topic, 0)
        state, log = self.broker.share.partition(group_id, partition), self.broker.log(partition)
        if state is None or log is None:
            return -1
        ended = [
            record
            for offset in range(state.start_offset, log.end_offset)
            if (record := state.record(offset)) is not None and record.has_ended
        ]
        return log.end_offset - state.start_offset - len(ended)

    def client(self, group_id: str) -> InMemoryShareClient:
        client = InMemoryShareClient(self.broker, group_id, request_timeout=self.timing.lock_duration / 2)
        self._clients.append(client)
        return client

    def unreachable_client(self, group_id: str) -> InMemoryShareClient:
        nowhere = InMemoryBroker()
        nowhere.go_down()
        return InMemoryShareClient(nowhere, group_id)

    def cut_off(self) -> None:
        self.broker.go_down()

    def reconnect(self) -> None:
        self.broker.come_back()

    def silence(self) -> None:
        for node in self.broker.numbers:
            self.broker.hang(node)
        for request in _ASKED:
            self.broker.faults.always(request, Fault(is_request_lost=True))

    def corrupt(self, topic: str, first: int, end: int) -> None:
        self.broker.corrupt(TopicPartition(topic, 0), first, end)

    def deny_topic(self, topic: str) -> None:
        self.broker.deny_topic(topic)

    def deny_group(self, group_id: str) -> None:
        self.broker.deny_group(group_id)

    def expel(self, group_id: str) -> None:
        group = self.broker.share_groups.group(group_id)
        for member in list(group.members) if group is not None else ():
            self.broker.share_groups.expire(group_id, member)

    def forget_sessions(self, group_id: str) -> None:
        for node, member in self.broker.share.sessions(group_id):
            self.broker.share.evict(node, group_id, member)

    async def replace_group(self, group_id: str, topic: str) -> None:
        # Otherwise a member that asks first makes the share group again.
        self.broker.faults.always(Request.SHARE_HEARTBEAT, Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        self.broker.delete_share_group(group_id)
        await self.make_consumer_group(group_id, topic)
        self.broker.faults.heal(Request.SHARE_HEARTBEAT)

    def lose_answer(self) -> None:
        self.broker.faults.script(Request.SHARE_ACKNOWLEDGE, Fault(is_response_lost=True))

    def without_share_groups(self) -> None:
        self.broker.share_version = 0

    def move_leader(self, topic: str) -> None:
        partition = TopicPartition(topic, 0)
        self.broker.move_leader(partition, 3 - (self.broker.leader(partition) or 1))

    async def close(self) -> None:
        """Stop what the test has left."""
        for client in self._clients:
            await client.stop(1.0)


def _opening(timing: ShareTiming) -> Callable[[object], AbstractAsyncContextManager[ShareCluster]]:
    @contextlib.asynccontextmanager
    async def opened(_: object) -> AsyncIterator[ShareCluster]:
        cluster = MemoryShareCluster(timing)
        try:
            yield cluster
        finally:
            await cluster.close()

    return opened


KINDS: Final = (
    ShareClusterKind(name="memory", features=FEATURES, open=_opening(ShareTiming(120.0, 1.0))),
    ShareClusterKind(name="memory", features=FEATURES, open=_opening(ShareTiming(300.0, 30.0)), loops=("virtual",)),
)
