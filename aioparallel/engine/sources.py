"""A source: where records come from, in lanes, and what hears that they are complete. Whoever feeds the engine has one
kind of it: a member of a consumer group one for each session, an iterable one for all its items."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Sequence

from aioparallel.records import Record

__all__ = ["NO_CEILING", "Source"]

NO_CEILING = sys.maxsize
"""Every offset may start."""


class Source:
    """Lanes of records, as the scheduler keeps them. Written by the scheduler alone, but for what is said below.

    ``name``: lanes of two sources of one name are the same lanes, of which only one may run; a partition, for Kafka.
    """

    __slots__ = (
        "buffered",
        "buffered_bytes",
        "ceiling",
        "draining",
        "dropped",
        "full",
        "held",
        "in_flight",
        "in_ring",
        "lanes",
        "map_ceiling",
        "name",
        "parked",
        "ready",
        "stopped",
    )

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.lanes: dict[Hashable, Record] = {}  # by key, the record that came last; see lanes.py
        self.ready: deque[Record] = deque()  # heads of lanes, and records without order
        self.in_ring = False
        self.buffered = 0
        self.buffered_bytes = 0
        self.parked = 0
        self.in_flight = 0
        self.stopped = False  # draining or dropped: outcomes take the slow path
        self.dropped = False  # over: outcomes that still arrive change nothing
        self.draining = 0  # records in flight or producing that a drain still waits for
        self.full = False  # too many parked: only retries start
        self.map_ceiling = NO_CEILING  # nothing above it starts; see Scheduler.set_ceiling()
        self.ceiling = NO_CEILING  # nothing above it starts without a closer look: map_ceiling, or -1 while full
        self.held: list[Record] = []  # ready, but not to be started now

    @property
    def current(self) -> bool:
        """Whether outcomes of its records still count."""
        return not self.dropped

    def complete(self, offsets: Sequence[int]) -> None:
        """These records have their outcome. Called once a turn, with all that have ended in it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
