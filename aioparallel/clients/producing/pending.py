"""Pending outputs, and how their senders get the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from aioparallel.delivery.producer import OnDelivered, PendingOutput, TooLarge
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced
from aioparallel.records.user_errors import RAISED

__all__ = ["Outstanding", "outputs_of"]

logger = logging.getLogger(__name__)


class Outstanding:
    """Counts outputs without a result, and reports results. Calls ``on_none`` when the count reaches 0."""

    __slots__ = ("count", "on_none")

    def __init__(self) -> None:
        self.count = 0
        self.on_none: Callable[[], None] = lambda: None

    def placed(self, entries: Sequence[PendingOutput], topic: str, partition: int, offset: int, timestamp: int) -> None:
        """These were written at consecutive offsets from ``offset`` on; -1 if the offset is unknown.

        ``timestamp``: milliseconds, or -1 if the records keep their own timestamps."""
        self._end(len(entries))
        step = 0 if offset < 0 else 1
        new = tuple.__new__  # half the time of Produced(...)
        for entry in entries:
            written = entry.timestamp if timestamp < 0 else timestamp
            try:
                entry.placed(new(Produced, (topic, partition, offset, written)))
            except RAISED:
                _log_broken()
            offset += step

    def failed(
        self, entries: Iterable[PendingOutput], reason: str, *, passing: bool, partition: int | None = None
    ) -> None:
        """These failed. ``partition``: the partition, if it was chosen already."""
        too_large = isinstance(reason, TooLarge)
        for entry in entries:
            output = entry.output
            where = output.partition if partition is None else partition
            self._end(1)
            try:
                entry.failed(ProduceFailed(output.topic, where, reason, passing=passing, too_large=too_large))
            except RAISED:
                _log_broken()

    def _end(self, count: int) -> None:
        self.count -= count
        if not self.count:
            self.on_none()


def _log_broken() -> None:
    # Log and go on: the other outputs of the batch need their results as well.
    logger.exception("A delivery callback raised", extra={"action": "callback_failed"})


class _Call:
    """The outputs of one call of ``send``, which ends when all of them have a result."""

    __slots__ = ("delivered", "failure", "outstanding", "places")

    def __init__(self, count: int, delivered: OnDelivered) -> None:
        self.delivered = delivered
        self.outstanding = count
        self.places: list[Produced | None] = [None] * count
        self.failure: ProduceFailed | None = None

    def ended(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.delivered(self.failure or cast("list[Produced]", self.places))


class _Part(PendingOutput):
    """One output of a call."""

    __slots__ = ("call", "index")

    def __init__(self, output: Outgoing, call: _Call, index: int) -> None:
        super().__init__(output)
        self.call = call
        self.index = index

    def placed(self, place: Produced) -> None:
        self.call.places[self.index] = place
        self.call.ended()

    def failed(self, failure: ProduceFailed) -> None:
        # Report the first failure.
        self.call.failure = self.call.failure or failure
        self.call.ended()


def outputs_of(outputs: Sequence[Outgoing], delivered: OnDelivered) -> list[PendingOutput]:
    """The pending outputs of one call of ``send``."""
    call = _Call(len(outputs), delivered)
    return [_Part(output, call, index) for index, output in enumerate(outputs)]
