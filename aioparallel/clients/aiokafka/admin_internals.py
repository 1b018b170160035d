"""What this package uses of aiokafka's admin client; see ``internals.py``."""

# ruff: noqa: D102 - what each of them does is aiokafka's to say

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aioparallel.clients.aiokafka.internals import ConfigsAnswer, Connections
from aioparallel.records import TopicPartition

__all__ = ["AdminClient", "CreatedTopics", "DeletedTopics"]


class CreatedTopics(Protocol):
    """``aiokafka.protocol.admin.CreateTopicsResponse``: of each topic its name, error code and, but in the oldest
    version, message."""

    topic_errors: list[tuple[str, int, str]]


class DeletedTopics(Protocol):
    """``aiokafka.protocol.admin.DeleteTopicsResponse``: of each topic its name and error code."""

    topic_error_codes: list[tuple[str, int]]


class AdminClient(Protocol):
    """``aiokafka.admin.AIOKafkaAdminClient``."""

    _client: Connections

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def create_topics(self, new_topics: list[object]) -> CreatedTopics: ...
    async def delete_topics(self, topics: list[str]) -> DeletedTopics: ...
    async def delete_records(
        self, records_to_delete: Mapping[TopicPartition, object], timeout_ms: int
    ) -> dict[TopicPartition, int]: ...
    async def describe_topics(self, topics: list[str]) -> list[Mapping[str, object]]: ...
    async def describe_configs(self, config_resources: list[object]) -> list[ConfigsAnswer]: ...
    async def find_coordinator(self, group_id: str) -> int: ...
