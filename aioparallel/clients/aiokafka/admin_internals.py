"""The parts of aiokafka's admin client that are used; see ``internals.py``."""

# ruff: noqa: D102 - documented by aiokafka

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aioparallel.clients.aiokafka.internals import ConfigsAnswer, Connections
from aioparallel.records.record import TopicPartition

__all__ = ["AdminClient", "CreatedTopics", "DeletedTopics"]


class CreatedTopics(Protocol):
    """``aiokafka.protocol.admin.CreateTopicsResponse``: name, error code and (except in version 0) message of each
    topic."""

    topic_errors: list[tuple[str, int, str]]


class DeletedTopics(Protocol):
    """``aiokafka.protocol.admin.DeleteTopicsResponse``: name and error code of each topic."""

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
