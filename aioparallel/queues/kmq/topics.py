"""The topics of one queue."""

from __future__ import annotations

from collections.abc import Collection

from aioparallel.config.options import checked_text
from aioparallel.records.errors import ConfigurationError, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["QueueTopics"]


class QueueTopics:
    """``queue``: the topic of the records. ``markers``: by default the queue's name with ``-markers``. ``dead_letter``:
    by default the queue's name with ``__undelivered``, as in KMQ."""

    def __init__(self, queue: str, markers: str | None, dead_letter: str | None) -> None:
        self.queue = checked_text("topic", queue)
        self.markers = f"{queue}-markers" if markers is None else checked_text("marker_topic", markers)
        self.dead_letter = f"{queue}__undelivered" if dead_letter is None else checked_text("dead_letter", dead_letter)
        self.names = (self.queue, self.markers, self.dead_letter)
        for option, name in (("marker_topic", self.markers), ("dead_letter", self.dead_letter)):
            if self.names.count(name) > 1:
                raise ConfigurationError(option, name, "must be a topic of its own")

    def check(self, found: Collection[TopicPartition], servers: str) -> None:
        """Raises TopicNotFound and ConfigurationError."""
        counts = {name: sum(one.topic == name for one in found) for name in (self.queue, self.markers)}
        missing = {name for name, count in counts.items() if not count}
        if not any(one.topic == self.dead_letter for one in found):
            missing.add(self.dead_letter)
        if missing:
            raise TopicNotFound(missing, servers)
        # The marker topic may have more: its partitions are added before those of the queue.
        if counts[self.markers] < counts[self.queue]:
            raise ConfigurationError(
                "marker_topic",
                self.markers,
                f"has {counts[self.markers]} partitions and {self.queue} has {counts[self.queue]}: a marker is stored "
                "in the partition of its record's number; add partitions to the marker topic",
            )
