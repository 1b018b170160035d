"""Writes end markers without waiting for them: a record without one is redelivered."""

from __future__ import annotations

import logging

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.queues.kmq.markers import END, output_of
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition

__all__ = ["EndMarkers"]

logger = logging.getLogger(__name__)


class EndMarkers:
    """The end markers of one consumer or tracker."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.lost = 0
        """End markers that could not be written."""
        self.late = 0
        """Records that were handled after their lease had ended."""

    def write(self, partition: int, offset: int) -> None:
        """Write the end marker of a record."""
        self._producer.send_one(_EndMarker(output_of(self._topic, partition, offset, END), self))

    def is_late(self, place: TopicPartition, offset: int, seconds: float) -> None:
        """Report that a record ended this many seconds after its lease.

        Only this log line explains why records of successful handlers are redelivered, and dead-lettered in the end. It
        is rate-limited.
        """
        self.late += 1
        if self.late in (1, 10) or self.late % 1_000 == 0:
            logger.warning(
                "%d records were handled after their lease had ended, the last one %.1f s after: %s offset %d; each is "
                "redelivered, and dead-lettered in the end: set a longer lease, or extend() it",
                self.late,
                seconds,
                place,
                offset,
                extra={
                    "action": "lease_outlived",
                    "topic": place.topic,
                    "partition": place.partition,
                    "offset": offset,
                },
            )


class _EndMarker(PendingOutput):
    __slots__ = ("_of",)

    def __init__(self, output: Outgoing, of: EndMarkers) -> None:
        super().__init__(output)
        self._of = of

    def placed(self, place: Produced) -> None:
        """Nothing waits for it."""

    def failed(self, failure: ProduceFailed) -> None:
        """Log the loss, rate-limited."""
        self._of.lost += 1
        if self._of.lost in (1, 10) or self._of.lost % 1_000 == 0:
            logger.error(
                "%d end markers could not be written, so their records will be redelivered: %s",
                self._of.lost,
                failure,
                extra={"action": "end_marker_lost"},
            )
