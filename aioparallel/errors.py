"""Every exception of the project.

::

    AioparallelError
    ├── ConfigurationError (also ValueError)   an option is wrong, or two do not fit together
    ├── ConsumerStateError (also RuntimeError) the consumer is used the wrong way round: run twice, closed, ...
    ├── OffsetMapError (also ValueError)       commit metadata that is no readable offset map
    ├── BrokerStartError                       a broker for tests or the demo could not be started
    └── ClientError                            the Kafka client or the cluster behind it
        ├── BrokerUnreachable                  no broker answered within the deadline
        ├── TopicNotFound                      a topic asked for by name does not exist
        ├── NotAuthorized                      the cluster refuses this user the topic or the group
        ├── OffsetOutOfRange                   the log does not hold the position any more (or yet)
        ├── NoCommittedOffset                  nothing committed, and auto_offset_reset="error"
        └── FetchFailed                        a partition's data cannot be read

Each message says what happened, with which topic, partition and offset, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Collection

from aioparallel.records import TopicPartition

__all__ = [
    "AioparallelError",
    "BrokerStartError",
    "BrokerUnreachable",
    "ClientError",
    "ConfigurationError",
    "ConsumerStateError",
    "FetchFailed",
    "NoCommittedOffset",
    "NotAuthorized",
    "OffsetMapError",
    "OffsetOutOfRange",
    "TopicNotFound",
]


class AioparallelError(Exception):
    """The top of the tree."""


class ConfigurationError(AioparallelError, ValueError):
    """An option is wrong: the message names it, the value found, and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option}={value!r}: {allowed}")
        self.option = option
        self.value = value
        self.allowed = allowed


class ConsumerStateError(AioparallelError, RuntimeError):
    """The consumer was used in a state that does not allow it."""


class OffsetMapError(AioparallelError, ValueError):
    """Commit metadata that is no readable offset map; the message is the reason.

    Reading goes on without a map: the records above the committed offset run again.
    """


class BrokerStartError(AioparallelError):
    """A broker for tests or for the demo could not be started."""


class ClientError(AioparallelError):
    """The Kafka client, or the cluster behind it, reports a failure that waiting does not mend."""


class BrokerUnreachable(ClientError):
    """No broker answered within the deadline."""

    def __init__(self, bootstrap_servers: str, seconds: float, reason: str) -> None:
        super().__init__(
            f"no Kafka broker answered at {bootstrap_servers} within {seconds:g} s ({reason}); "
            "check bootstrap_servers, the network, and the TLS and SASL settings in client_options"
        )
        self.bootstrap_servers = bootstrap_servers


class TopicNotFound(ClientError):
    """A topic asked for by name does not exist. Nothing was created."""

    def __init__(self, topics: Collection[str], bootstrap_servers: str) -> None:
        names = ", ".join(sorted(topics))
        super().__init__(
            f"topic not found at {bootstrap_servers}: {names}; create it first, or check the name and this "
            "user's permission to describe it (nothing was created)"
        )
        self.topics = tuple(sorted(topics))


class NotAuthorized(ClientError):
    """The cluster refuses this user the topic or the group."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not authorised for {what}; ask for the permission, or check the credentials")


class OffsetOutOfRange(ClientError):
    """The log of a partition does not hold the position it should be read from."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition}: offset {offset} is outside the log (deleted by retention, or the log was truncated); "
            'set auto_offset_reset to "earliest" or "latest", or commit an offset inside the log'
        )
        self.partition = partition
        self.offset = offset


class NoCommittedOffset(ClientError):
    """The group has committed nothing for a partition, and ``auto_offset_reset`` is ``"error"``."""

    def __init__(self, partition: TopicPartition, group_id: str) -> None:
        super().__init__(
            f"{partition}: group {group_id!r} has no committed offset and auto_offset_reset is 'error'; "
            'commit one, use start_at, or set auto_offset_reset to "earliest" or "latest"'
        )
        self.partition = partition


class FetchFailed(ClientError):
    """The data of a partition cannot be read."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(f"{partition}: cannot read at offset {offset}: {reason}")
        self.partition = partition
        self.offset = offset
