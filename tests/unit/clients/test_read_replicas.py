"""Reading from followers (KIP-392): a follower that fails is avoided, and its leader is used."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.structs import BrokerMetadata

from aioparallel.clients.aiokafka import internals
from aioparallel.clients.aiokafka.read_replicas import ReadReplicas
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WAIT = 0.05
"""Seconds for which brokers keep a fetch that finds nothing."""

Reply = Callable[[int, TopicPartition, str], tuple[int, int]]
"""Of broker, partition, and rack: an error code, and the follower that is named; -1: none."""


class Brokers:
    """Replaces aiokafka's client: all brokers are known, and answer at once."""

    def __init__(self, leaders: Mapping[TopicPartition, int], reply: Reply) -> None:
        self._loop = asyncio.get_running_loop()
        self._metadata_max_age_ms = 300_000
        self._conns: dict[object, object] = {}
        self.cluster = SimpleNamespace(
            leader_for_partition=leaders.__getitem__,
            broker_metadata=lambda node: BrokerMetadata(node, "host", 1, None),
        )
        self._reply = reply
        self.asked: Counter[int] = Counter()
        self.read: Counter[tuple[TopicPartition, int]] = Counter()
        """How often each partition was read from which broker."""

    def force_metadata_update(self) -> None:
        """Nothing changes."""

    async def send(self, node_id: int, request: Any, *, group: int = 0) -> object:
        """Answers a fetch."""
        await asyncio.sleep(0.001)
        self.asked[node_id] += 1
        topics, is_empty = [], True
        for topic, parts in request.topics:
            entries = []
            for number, *_ in parts:
                code, named = self._reply(node_id, TopicPartition(topic, number), request._rack_id)
                entries.append((number, code, 100, 100, 0, None, named, b""))
                if code == ErrorCode.NONE and named < 0:
                    self.read[TopicPartition(topic, number), node_id] += 1
                else:
                    is_empty = False
            topics.append((topic, entries))
        if is_empty:
            await asyncio.sleep(WAIT)
        return SimpleNamespace(API_VERSION=11, topics=topics)


async def reading(leaders: Mapping[TopicPartition, int], reply: Reply) -> Brokers:
    """The requests of one second."""
    brokers = Brokers(leaders, reply)
    subscriptions = SubscriptionState(loop=asyncio.get_running_loop())
    subscriptions.assign_from_user(set(leaders))
    for partition in leaders:
        subscriptions.seek(partition, 50)
    fetcher = Fetcher(brokers, subscriptions, client_rack="near", fetch_max_wait_ms=round(WAIT * 1000))
    ReadReplicas(cast("internals.Fetcher", fetcher), WAIT)
    await asyncio.sleep(1)
    await fetcher.close()
    return brokers


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE])
async def test_a_follower_that_does_not_have_the_partition(code: ErrorCode) -> None:
    """It was restarted, for example, and its leader still prefers it. The partition is read from the leader, and
    neither is asked hundreds of times a second."""

    def reply(node: int, _: TopicPartition, rack: str) -> tuple[int, int]:
        if node == 2:
            return code, -1
        return ErrorCode.NONE, 2 if rack else -1

    brokers = await reading({T0: 1}, reply)
    assert brokers.read[T0, 1] > 5
    assert brokers.asked[2] == 1
    assert brokers.asked[1] < 40


async def test_a_follower_that_leads_another_partition() -> None:
    """If that other partition's follower fails, it is read from this leader, although each request also contains a
    partition that this broker follows."""

    def reply(node: int, partition: TopicPartition, rack: str) -> tuple[int, int]:
        if node == 1 and partition == T0:
            return ErrorCode.NONE, 2 if rack else -1
        if node == 2:
            return ErrorCode.OFFSET_OUT_OF_RANGE, -1
        return ErrorCode.NONE, 1 if node == 3 and rack else -1

    brokers = await reading({T0: 1, T1: 3}, reply)
    assert brokers.read[T0, 1] > 5
    assert brokers.read[T1, 1] > 5
