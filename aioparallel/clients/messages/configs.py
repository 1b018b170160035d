"""Changes single configs of topics, brokers and groups (KIP-339), which aiokafka's clients do not know."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.schema import Int8, Int16, Int32

__all__ = [
    "INCREMENTAL_ALTER_CONFIGS",
    "AlteredResource",
    "ChangedConfig",
    "ChangedResource",
    "ConfigOperation",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "ResourceType",
]


class ResourceType(enum.IntEnum):
    """What has configs."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperation(enum.IntEnum):
    """What becomes of a config."""

    SET = 0
    DELETE = 1
    """The default counts again."""


@dataclass(frozen=True, slots=True)
class ChangedConfig:
    """A config. ``value``: None with ``DELETE``."""

    name: str
    config_operation: Int8
    value: str | None


@dataclass(frozen=True, slots=True)
class ChangedResource:
    """The configs of a resource that change."""

    resource_type: Int8
    resource_name: str
    configs: tuple[ChangedConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """Changes configs. Those that are not named stay."""

    resources: tuple[ChangedResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlteredResource:
    """The result for a resource."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    """The results."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlteredResource, ...] = ()


INCREMENTAL_ALTER_CONFIGS: Final = Api(
    "IncrementalAlterConfigs", 44, 1, 1, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
)
