"""The topics of one queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aioparallel.config.extension import ConsumerContext
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

    async def look_up(self, consumer: ConsumerContext, timeout: float) -> None:
        """Look the topics up, and check them."""
        self.check(await consumer.client.partitions(self.names, timeout), consumer.servers)

    def check(self, found: Iterable[TopicPartition], servers: str) -> None:
        """Check that the topics exist and fit each other. Raises TopicNotFound and ConfigurationError."""
        counts = Counter(one.topic for one in found)
        if missing := {name for name in self.names if not counts[name]}:
            uses = {
                self.queue: "the queue",
                self.markers: "the markers of its records; marker_topic= names it",
                self.dead_letter: "its dead letters; dead_letter= names it",
            }
            raise TopicNotFound(missing, servers, uses)
        # The marker topic may have more: its partitions are added before those of the queue.
        if counts[self.markers] < counts[self.queue]:
            raise ConfigurationError(
                "marker_topic",
                self.markers,
                f"has {counts[self.markers]} partitions and {self.queue} has {counts[self.queue]}: a marker is stored "
                "in the partition of its record's number; add partitions to the marker topic",
            )
