"""The coordinator of a group, with brokers that answer as the test says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aioparallel.clients.aiokafka.group_node import GroupNode, LookUpRefused
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.offset_requests import GroupOffsets
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition

PLACE = TopicPartition("t", 0)


class Denying:
    """Connections to brokers that refuse to name the coordinator."""

    async def send(self, node: int, request: object, **_options: object) -> Any:
        return SimpleNamespace(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, coordinator_id=-1)


def denying() -> Connections:
    return cast("Connections", Denying())


def offsets_of(node: GroupNode) -> GroupOffsets:
    async def topic_ids(topics: object, timeout: float) -> dict[str, bytes]:
        return {}

    def ignore(*_: object, **__: object) -> None:
        pass

    return GroupOffsets(
        "g",
        node,
        denying(),
        topic_ids,
        retry_backoff=0.01,
        instance_id=None,
        on_fenced=ignore,
        on_stale=ignore,
    )


async def test_a_refused_look_up_refuses_commits_and_raises_nothing() -> None:
    """A permission may be taken away while the coordinator moves."""
    node = GroupNode(denying(), "g", lambda: [1])
    results = await offsets_of(node).commit({PLACE: Committed(1, "")}, Generation(1, "me"), 1.0)
    assert results == {PLACE: CommitFault.REFUSED}


async def test_a_refused_look_up_names_the_missing_permission() -> None:
    node = GroupNode(denying(), "g", lambda: [1])
    with pytest.raises(NotAuthorized, match="'g'"):
        await offsets_of(node).committed([PLACE], 1.0)
    with pytest.raises(LookUpRefused):
        await asyncio.wait_for(node.node(), 1.0)
