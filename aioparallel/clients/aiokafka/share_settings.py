"""Turns options into connections for a member of a share group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient

from aioparallel.clients.aiokafka.checking import (
    REBOOTSTRAP_AFTER,
    GivenOptions,
    check_connection,
    rebootstrap_after,
)
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.settings import FETCH_MAX_BYTES, built, check_servers, option_names
from aioparallel.records.errors import ConfigurationError

__all__ = ["ShareSettings"]

_FETCHING: Final = frozenset({"client_rack", "fetch_max_bytes"})
_OURS: Final[Mapping[str, str]] = {
    "api_version": "leave it out, aiokafka ignores it and asks each broker",
    "bootstrap_servers": "use bootstrap_servers of the consumer",
    "group_id": "use group_id of the consumer",
    "isolation_level": "leave it out, it is a setting of the group: share.isolation.level",
    "auto_offset_reset": "leave it out, it is a setting of the group: share.auto.offset.reset",
    "group_instance_id": "leave it out, share groups have no static members",
    "fetch_max_wait_ms": "leave it out, fetches wait as long as acknowledgements allow",
    "loop": "leave it out, the consumer runs on the loop that starts it",
}
"""aiokafka's options that users cannot set, and what to use instead."""


class ShareSettings:
    """Everything that a member is made with, checked before anything connects. Times in seconds, sizes in bytes."""

    def __init__(
        self, bootstrap_servers: str, group_id: str, *, client_options: Mapping[str, object], max_wait: float
    ) -> None:
        check_servers(bootstrap_servers)
        if not 0 < max_wait <= 30:
            raise ConfigurationError("max_wait", max_wait, "seconds, more than 0 and at most 30")
        given = GivenOptions(client_options, lambda _name: "client_options")
        known = option_names(AIOKafkaClient) & option_names(AIOKafkaConsumer)
        given.names(known | _FETCHING | {REBOOTSTRAP_AFTER}, _OURS)
        check_connection(given)
        given.text("client_rack")
        self.bootstrap_servers = bootstrap_servers
        self.group_id = group_id
        self.max_wait = max_wait
        self.max_bytes = int(given.number("fetch_max_bytes", FETCH_MAX_BYTES, least=1, whole=True))
        self.rack = cast("str | None", client_options.get("client_rack"))
        self.retry_backoff = given.number("retry_backoff_ms", 100) / 1000
        self.rebootstrap_after = rebootstrap_after(given)
        self._options: dict[str, object] = {
            "client_id": "aioparallel",
            **{name: value for name, value in client_options.items() if name not in _FETCHING | {REBOOTSTRAP_AFTER}},
            "bootstrap_servers": bootstrap_servers,
        }

    def build(self) -> Connections:
        """Connections that are not connected yet, and must be closed. Needs a running loop."""
        return cast("Connections", built(AIOKafkaClient, self._options, "client_options"))
