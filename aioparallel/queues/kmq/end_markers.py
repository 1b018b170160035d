"""End markers: nobody waits for one, for a record whose end is not written is delivered again."""

from __future__ import annotations

import logging

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.queues.kmq.markers import END, output_of
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition

__all__ = ["EndMarkers"]

logger = logging.getLogger(__name__)


class EndMarkers:
    """Writes them; nobody waits for one: a record whose end is not written is delivered again."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.lost = 0
        """Those that could not be written."""
        self.late = 0
        """Records that were handled when their lease was over."""

    def write(self, partition: int, offset: int) -> None:
        """The record has ended."""
        self._producer.send_one(_EndMarker(output_of(self._topic, partition, offset, END), self))

    def is_late(self, place: TopicPartition, offset: int, seconds: float) -> None:
        """The record has ended so many seconds after its lease. Told once in a while: nobody else can say why handlers
        that succeed are called again, and their records put away in the end."""
        self.late += 1
        if self.late in (1, 10) or self.late % 1_000 == 0:
            logger.warning(
                "%d records were handled when their lease was over, the last one %.1f s after: %s offset %d; each is "
                "delivered again all the same, and put away in the end: give a longer lease, or extend() it",
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
        """That is all."""

    def failed(self, failure: ProduceFailed) -> None:
        """Told once in a while."""
        self._of.lost += 1
        if self._of.lost in (1, 10) or self._of.lost % 1_000 == 0:
            logger.error(
                "%d end markers could not be written, so their records will be delivered again: %s",
                self._of.lost,
                failure,
                extra={"action": "end_marker_lost"},
            )
