"""What the members of a group that copies are to do, and what they note."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from aioparallel.testing.event_log import Event, EventKind

__all__ = ["UNKNOWN", "Acknowledged", "CopyJob", "acknowledged_in", "again_in"]

UNKNOWN: Final = (1 << 44) - 1
"""The offset of an output if the broker no longer knows it."""


@dataclass(frozen=True, kw_only=True)
class CopyJob:
    """What each member is to do.

    ``handler_seconds``: how long each handler sleeps, until SIGUSR1; with ``max_concurrency`` of
    them at once it sets the rate. Times are seconds.
    """

    bootstrap_servers: str
    source: str
    target: str
    group_id: str
    delivery_timeout: float
    handler_seconds: float
    max_concurrency: int = 100
    session_timeout: float = 30.0
    heartbeat_interval: float = 3.0

    def text(self) -> str:
        """The job as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> CopyJob:
        """The job back from :meth:`text`."""
        return cls(**json.loads(text))


class Acknowledged(NamedTuple):
    """An output that a broker acknowledged."""

    at: float
    """Seconds, CLOCK_MONOTONIC."""
    partition: int
    offset: int
    number: int


# In a member's event log BEGAN (partition 0) is the number of an output that was acknowledged and ENDED, next to it,
# the place where it is stored; FAILED (partition 0) is the number of a record that is tried again.


def acknowledged_in(events: list[Event]) -> list[Acknowledged]:
    """What was acknowledged to a member, in that order."""
    found, number = [], -1
    for kind, partition, offset, at in events:
        if kind is EventKind.BEGAN:
            number = offset
        elif kind is EventKind.ENDED:
            found.append(Acknowledged(at / 1e9, partition, offset, number))
    return found


def again_in(events: list[Event]) -> list[int]:
    """The numbers of the records that a member tried again, once for each time: the handler never fails, so each time a
    delivery had given up."""
    return [event.offset for event in events if event.kind is EventKind.FAILED]
