"""Writes end markers without waiting for them: a record without one is redelivered."""

from __future__ import annotations

import logging

from aioparallel.delivery.producer import Producer, SentOutput
from aioparallel.queues.kmq.markers import END, output_of
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Produced, TopicPartition

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
        self._producer.send_one(SentOutput(output_of(self._topic, partition, offset, END), self._ended))

    def _ended(self, result: Produced | ProduceFailed) -> None:
        if not isinstance(result, ProduceFailed):
            return
        self.lost += 1
        if self.lost in (1, 10) or self.lost % 1_000 == 0:
            logger.error(
                "%d end markers could not be written, so their records will be redelivered: %s",
                self.lost,
                result,
                extra={"action": "end_marker_lost"},
            )

    def note_late(self, place: TopicPartition, offset: int, seconds: float) -> None:
        """Count and log a record that ended this many seconds after its lease.

        No other log line explains why records of successful handlers are redelivered, and perhaps dead-lettered.
        """
        self.late += 1
        if self.late in (1, 10) or self.late % 1_000 == 0:
            logger.warning(
                "%s handled after the lease had ended, the last one %.1f s after: %s offset %d. Each is redelivered, "
                "also if its handler succeeded; one whose every delivery takes longer than its lease is dead-lettered "
                "in the end: set a longer lease, or extend() it",
                "1 record was" if self.late == 1 else f"{self.late} records were",
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
