"""Outputs on their way, and the calls of ``send`` they came with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from aioparallel.engine.producer import OnDelivered
from aioparallel.errors import ProduceFailed
from aioparallel.records import Outgoing, Produced

__all__ = ["Entry", "Outstanding", "entries_of"]

logger = logging.getLogger(__name__)


class Outstanding:
    """How many calls of ``send`` have not ended. ``on_none`` is told when the last one has."""

    __slots__ = ("count", "on_none")

    def __init__(self, on_none: Callable[[], None]) -> None:
        self.count = 0
        self.on_none = on_none

    def end(self, delivered: OnDelivered, result: Sequence[Produced] | ProduceFailed) -> None:
        """One call has ended: tell whoever made it."""
        self.count -= 1
        if not self.count:
            self.on_none()
        try:
            delivered(result)
        except Exception:
            # Others share the batch, and must hear of it all the same.
            logger.exception("A delivery callback raised", extra={"action": "callback_failed"})


class Entry(Protocol):
    """One output on its way. Ends once: :meth:`placed` or :meth:`failed`."""

    output: Outgoing
    timestamp: int
    """Milliseconds since the epoch: the output's own, or that of its ``send``."""
    deadline: float
    """On the loop's clock, when patience ends. Ascends in the order of sending."""

    def placed(self, place: Produced) -> None:
        """It stands in the log."""

    def failed(self, failure: ProduceFailed) -> None:
        """It does not, as far as is known."""


class Single:
    """An output that was sent by itself."""

    __slots__ = ("among", "deadline", "delivered", "output", "timestamp")

    def __init__(
        self, output: Outgoing, timestamp: int, deadline: float, delivered: OnDelivered, among: Outstanding
    ) -> None:
        self.output = output
        self.timestamp = timestamp if output.timestamp is None else output.timestamp
        self.deadline = deadline
        self.delivered = delivered
        self.among = among

    def placed(self, place: Produced) -> None:
        self.among.end(self.delivered, (place,))

    def failed(self, failure: ProduceFailed) -> None:
        self.among.end(self.delivered, failure)


class Group:
    """Outputs that were sent together: they end when the last of them has."""

    __slots__ = ("among", "delivered", "failure", "outstanding", "places")

    def __init__(self, count: int, delivered: OnDelivered, among: Outstanding) -> None:
        self.delivered = delivered
        self.among = among
        self.outstanding = count
        self.places: list[Produced | None] = [None] * count
        self.failure: ProduceFailed | None = None

    def ended(self) -> None:
        """One of them has."""
        self.outstanding -= 1
        if not self.outstanding:
            self.among.end(self.delivered, self.failure or cast("list[Produced]", self.places))


class Part:
    """One output of a group."""

    __slots__ = ("deadline", "group", "index", "output", "timestamp")

    def __init__(self, output: Outgoing, timestamp: int, deadline: float, group: Group, index: int) -> None:
        self.output = output
        self.timestamp = timestamp if output.timestamp is None else output.timestamp
        self.deadline = deadline
        self.group = group
        self.index = index

    def placed(self, place: Produced) -> None:
        self.group.places[self.index] = place
        self.group.ended()

    def failed(self, failure: ProduceFailed) -> None:
        # The first failure is the one that is told.
        self.group.failure = self.group.failure or failure
        self.group.ended()


def entries_of(
    outputs: Sequence[Outgoing], delivered: OnDelivered, deadline: float, timestamp: int, among: Outstanding
) -> Sequence[Entry]:
    """What one call of ``send`` puts on its way. ``timestamp``: for outputs without one."""
    among.count += 1
    if len(outputs) == 1:
        return (Single(outputs[0], timestamp, deadline, delivered, among),)
    group = Group(len(outputs), delivered, among)
    return [Part(output, timestamp, deadline, group, index) for index, output in enumerate(outputs)]
