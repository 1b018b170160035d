"""Checks what the user names to pause it."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from aioparallel.config.handling import Handling, Ordering
from aioparallel.engine.schedule.lanes import USUAL_KEYS, check_key
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.records.wording import kind_of

__all__ = ["PauseTargets"]


class PauseTargets:
    """The topics and keys that may be paused. ``topics``: those that are read. ``logical``: names that stand for
    several topics."""

    def __init__(
        self,
        topics: Sequence[str] | re.Pattern[str],
        handling: Handling,
        logical: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._topics = topics
        self._handling = handling
        self._logical = logical or {}

    def checked(self, targets: Iterable[object]) -> list[str | TopicPartition]:
        """Return topics and partitions. Raises ConfigurationError."""
        found: list[str | TopicPartition] = []
        for target in targets:
            if isinstance(target, str):
                found += self.topics(target)
            elif isinstance(target, tuple) and len(target) == 2 and type(target[1]) is int and target[1] >= 0:
                found += [TopicPartition(topic, target[1]) for topic in self.topics(target[0])]
            else:
                raise ConfigurationError("targets", target, "must be the name of a topic, or a TopicPartition")
        return found

    def topics(self, topic: object) -> Collection[str]:
        """Return the topics that have this name. Raises ConfigurationError for one that is not read."""
        if not isinstance(topic, str):
            raise ConfigurationError("topic", topic, "must be the name of a topic")
        if topic in self._logical:
            return self._logical[topic]
        if isinstance(self._topics, re.Pattern):
            is_read, read = self._topics.fullmatch(topic) is not None, f"topics that match {self._topics.pattern!r}"
        else:
            is_read, read = topic in self._topics, ", ".join(self._topics)
        if not is_read:
            raise ConfigurationError("topic", topic, f"is not read by this consumer, which reads {read}")
        return (topic,)

    def keys(self, keys: Sequence[Hashable]) -> Sequence[Hashable]:
        """Return the keys. Raises ConfigurationError if they order no records."""
        if not keys:
            raise ConfigurationError("keys", keys, "must be given: pause() pauses a topic with all its keys")
        handling = self._handling
        if handling.ordering is not Ordering.KEY:
            raise ConfigurationError(
                "ordering",
                handling.ordering,
                "has no keys that could be paused: pause a topic or a partition. Keys need Ordering.KEY, which a share "
                "group does not have",
            )
        for key in keys:
            if key is None:
                raise ConfigurationError("keys", key, "is the key of records without order, which cannot be paused")
            if handling.order_by is None:
                if type(key) is not bytes:
                    raise ConfigurationError(
                        "keys", key, "must be bytes, as the key is before it is deserialised (record.raw_key)"
                    )
            elif type(key) not in USUAL_KEYS:
                try:
                    check_key(key)
                except TypeError as error:
                    raise ConfigurationError(
                        "keys", key, f"must be hashable, as what order_by returns; it is {kind_of(key)}"
                    ) from error
        return keys
