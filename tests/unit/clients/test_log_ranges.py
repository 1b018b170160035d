"""Offsets of many logs, while brokers cannot be reached or leaders move."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from tests.unit.engine.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]

PLACES = [TopicPartition("t", number) for number in range(4)]


class Cluster:
    """Connections to two brokers. ``refusals``: for how many requests the first one refuses its partitions; ``away``:
    how often no broker answers a request for metadata."""

    def __init__(self, *, refusals: int = 0, away: int = 0, leaderless: Collection[TopicPartition] = ()) -> None:
        self.refusals, self.away, self.leaderless = refusals, away, leaderless

    async def fetch_all_metadata(self) -> Any:
        if self.away:
            self.away -= 1
            raise kafka.KafkaError("Unable to get cluster metadata over all known brokers")
        return SimpleNamespace(leader_for_partition=self._leader)

    def _leader(self, partition: TopicPartition) -> int:
        return -1 if partition in self.leaderless else partition.partition % 2

    async def force_metadata_update(self) -> bool:
        return True

    async def send(self, node: int, request: Any) -> Any:
        code = ErrorCode.NONE
        if node == 0 and self.refusals:
            self.refusals -= 1
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        topics = [
            (topic, [(number, int(code), 0, 5 if which == -2 else 9) for number, which in some])
            for topic, some in request._topics
        ]
        return SimpleNamespace(topics=topics)


async def ranges(cluster: Cluster) -> dict[TopicPartition, tuple[int, int]]:
    admin = Admin("localhost:9", timeout=5)
    admin._connected = SimpleNamespace(_client=cluster)
    return await admin.log_ranges(PLACES)


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(refusals=3), Cluster(away=3), Cluster(away=1, refusals=1)])
async def test_what_passes_is_tried_again(cluster: Cluster) -> None:
    """A leader that has moved, and a moment in which no broker could be reached."""
    assert await ranges(cluster) == dict.fromkeys(PLACES, (5, 9))


async def test_partitions_without_a_leader_are_left_out() -> None:
    """Nobody can be asked about them."""
    assert (await ranges(Cluster(leaderless=PLACES[:1]))).keys() == set(PLACES[1:])
