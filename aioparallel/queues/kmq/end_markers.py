"""End markers: nobody waits for one, for a record whose end is not written is delivered again."""

from __future__ import annotations

import logging

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.errors import ProduceFailed
from aioparallel.queues.kmq.markers import END, output_of
from aioparallel.records import Outgoing, Produced

__all__ = ["EndMarkers"]

logger = logging.getLogger(__name__)


class EndMarkers:
    """Writes them; nobody waits for one: a record whose end is not written is delivered again."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.lost = 0
        """Those that could not be written."""

    def write(self, partition: int, offset: int) -> None:
        """The record has ended."""
        self._producer.send_one(_EndMarker(output_of(self._topic, partition, offset, END), self))


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
