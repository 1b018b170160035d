"""One call of ``send``: what it consists of, and what is still outstanding of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from aioparallel.engine.producer import OnDelivered
from aioparallel.errors import ProduceFailed
from aioparallel.records import Outgoing, Produced

__all__ = ["Delivery", "Entry", "Outstanding"]

logger = logging.getLogger(__name__)


class Outstanding:
    """How many deliveries have not ended. ``on_none`` is told when the last one has."""

    __slots__ = ("count", "on_none")

    def __init__(self, on_none: Callable[[], None]) -> None:
        self.count = 0
        self.on_none = on_none


class Delivery:
    """The outputs of one ``send`` until each of them has a place in a log, or has failed.

    ``deadline``: on the loop's clock, when patience ends. ``timestamp``: milliseconds since the epoch, for outputs
    without one.
    """

    __slots__ = ("among", "deadline", "delivered", "failure", "outputs", "outstanding", "places", "timestamp")

    def __init__(
        self,
        outputs: Sequence[Outgoing],
        delivered: OnDelivered,
        deadline: float,
        timestamp: int,
        among: Outstanding,
    ) -> None:
        self.outputs = outputs
        self.delivered = delivered
        self.deadline = deadline
        self.timestamp = timestamp
        self.among = among
        self.outstanding = len(outputs)
        # Made with the first place: hundreds of thousands of these may be waiting.
        self.places: list[Produced | None] | None = None
        self.failure: ProduceFailed | None = None
        among.count += 1

    def placed(self, index: int, place: Produced) -> None:
        """This output stands in the log."""
        if self.places is None:
            self.places = [None] * len(self.outputs)
        self.places[index] = place
        self.outstanding -= 1
        if not self.outstanding:
            self._end()

    def failed(self, failure: ProduceFailed) -> None:
        """One output has failed; the first failure is the one that is told."""
        self.failure = self.failure or failure
        self.outstanding -= 1
        if not self.outstanding:
            self._end()

    def _end(self) -> None:
        among = self.among
        among.count -= 1
        if not among.count:
            among.on_none()
        try:
            self.delivered(self.failure or cast("list[Produced]", self.places))
        except Exception:
            # Others share the batch, and must hear of it all the same.
            logger.exception("A delivery callback raised", extra={"action": "callback_failed"})


Entry = tuple[Delivery, int]
"""One output: the call it came with, and its index there."""
