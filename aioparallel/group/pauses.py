"""What the user has paused beside the whole consumer: topics, partitions and keys. Plain methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

from aioparallel.observe.stats import Paused
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Pauses"]

AnyRecord = Record[Any, Any]
Check = Callable[[AnyRecord], bool]
OriginOf = Callable[[AnyRecord], TopicPartition | None]


def _no_origin(record: AnyRecord) -> None:
    return None


class Pauses:
    """Topics, partitions and keys that are paused, whether or not they are assigned now. So a pause outlives a
    rebalance.

    ``retry_topics``: a record there is paused as well if its first place is: ``origin_of(record)``, None if unknown.
    """

    def __init__(self, retry_topics: Collection[str] = (), origin_of: OriginOf = _no_origin) -> None:
        self._retry_topics = frozenset(retry_topics)
        self._origin_of = origin_of
        self._targets: set[str | TopicPartition] = set()
        self._keys: dict[str, dict[Hashable, None]] = {}
        self._checks: dict[str, Check] = {}
        self.version = 0
        """Changes with each call that may change what is paused."""
        self.paused = Paused()
        """What is paused. Never changed, but replaced: other threads read it."""

    def pause(self, targets: Iterable[str | TopicPartition]) -> None:
        """Pause topics and partitions."""
        self._targets.update(targets)
        self._changed()

    def resume(self, targets: Iterable[str | TopicPartition]) -> None:
        """End the pauses of these topics and partitions."""
        self._targets.difference_update(targets)
        self._changed()

    def pause_keys(self, topic: str, keys: Iterable[Hashable]) -> None:
        """Pause keys of a topic."""
        self._set_keys(topic, self._keys.get(topic, {}) | dict.fromkeys(keys))

    def resume_keys(self, topic: str, keys: Iterable[Hashable]) -> None:
        """End the pauses of these keys."""
        left = dict(self._keys.get(topic, {}))
        for key in keys:
            left.pop(key, None)
        self._set_keys(topic, left)

    def _snapshot(self) -> Paused:
        topics = sorted(target for target in self._targets if isinstance(target, str))
        partitions = sorted(target for target in self._targets if isinstance(target, TopicPartition))
        keys = {topic: tuple(keys) for topic, keys in self._keys.items()}
        return Paused(False, tuple(topics), tuple(partitions), keys)

    def of(self, name: Hashable) -> tuple[bool, Check | None]:
        """Return whether a partition is paused, and how to find the paused ones of its records if only some are."""
        if not isinstance(name, TopicPartition):
            return False, None
        if name in self._targets or name.topic in self._targets:
            return True, None
        return False, self._checks.get(name.topic)

    def _set_keys(self, topic: str, keys: dict[Hashable, None]) -> None:
        self._keys.pop(topic, None)
        self._checks.pop(topic, None)
        if keys:
            self._keys[topic] = keys
            self._checks[topic] = lambda record: record._lane in keys
        self._changed()

    def _changed(self) -> None:
        """Make new functions for retry topics, so that what they hold is looked at again."""
        self.version += 1
        self.paused = self._snapshot()
        for topic in self._retry_topics:
            self._checks.pop(topic, None)
            if self._targets or self._keys:
                self._checks[topic] = self._check_of_origin(self._keys.get(topic, {}))

    def _check_of_origin(self, own_keys: Collection[Hashable]) -> Check:
        targets, keys, origin_of = frozenset(self._targets), dict(self._keys), self._origin_of

        def is_paused(record: AnyRecord) -> bool:
            if record._lane in own_keys:
                return True
            origin = origin_of(record)
            if origin is None:
                return False
            return origin in targets or origin.topic in targets or record._lane in keys.get(origin.topic, ())

        return is_paused
