"""The settings of a share group, as its brokers have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aioparallel.records.errors import ConfigurationError

__all__ = ["ShareGroupOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupOptions:
    """Settings of a share group: the group configs ``share.*`` of Kafka, and its defaults where nothing is said.
    Times are in seconds."""

    auto_offset_reset: Literal["latest", "earliest"] = "latest"
    """Where the group begins in a partition. ``"latest"``: at its end, when a member first fetches from it."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """``"read_committed"``: records of aborted transactions are not acquired, and those of open ones not yet."""
    lock_duration: float = 30.0
    """How long acquired records stay locked for their member (``share.record.lock.duration.ms``)."""
    delivery_count_limit: int = 5
    """How often a record is delivered at most (2 to 10)."""
    max_record_locks: int = 2000
    """Offsets of a partition between the first that has not ended and the last that was acquired
    (``share.partition.max.record.locks``)."""
    is_renew_enabled: bool = True
    """Whether members may renew locks (``share.renew.acknowledge.enable``)."""
    session_timeout: float = 45.0
    """How long the group keeps a member that sends no heartbeats."""
    heartbeat_interval: float = 0.1
    """Kafka: 5. With a short one, members notice new assignments sooner."""
    assignment_interval: float = 0.0
    """The shortest time between two assignments. Kafka: 1; the first one of a new group comes that late as well."""
    max_size: int = 200
    """Members of the group at most."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in ("latest", "earliest"):
            raise ConfigurationError("auto_offset_reset", self.auto_offset_reset, "latest or earliest")
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise ConfigurationError("isolation_level", self.isolation_level, "read_uncommitted or read_committed")
        for option in ("lock_duration", "session_timeout", "heartbeat_interval"):
            if not getattr(self, option) > 0:
                raise ConfigurationError(option, getattr(self, option), "seconds, above 0")
        if not self.assignment_interval >= 0:
            raise ConfigurationError("assignment_interval", self.assignment_interval, "seconds, at least 0")
        if not 2 <= self.delivery_count_limit <= 10:
            raise ConfigurationError("delivery_count_limit", self.delivery_count_limit, "2 to 10")
        for option in ("max_record_locks", "max_size"):
            if not getattr(self, option) >= 1:
                raise ConfigurationError(option, getattr(self, option), "at least 1")

    @property
    def reads_committed(self) -> bool:
        """Whether only committed records are delivered."""
        return self.isolation_level == "read_committed"
