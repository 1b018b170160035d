"""A session: one assignment of one partition to this process, from assigned to revoked or lost."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Hashable

from aioparallel.engine.client import Committed, Generation
from aioparallel.offsets import Ledger
from aioparallel.records import Record, TopicPartition

__all__ = ["NO_CEILING", "Session", "SessionState"]

NO_CEILING = sys.maxsize
"""Every offset may start."""


class SessionState(enum.Enum):
    """Where a session stands."""

    OPENING = "opening"
    """Assigned; its committed offset and map are being read."""
    OPEN = "open"
    """Records are fetched and run."""
    DRAINING = "draining"
    """Nothing new is started; those in flight end, then a last commit."""
    DROPPED = "dropped"
    """Over: outcomes that still arrive change nothing."""


class Session:
    """The state of one partition under one epoch.

    Written by: the assignment (state, generation, ledger), the scheduler (lanes and counts), the committer
    (``acknowledged``, ``map_ceiling``). Everything on one event loop.
    """

    __slots__ = (
        "acknowledged",
        "acknowledged_version",
        "buffered",
        "buffered_bytes",
        "ceiling",
        "cut",
        "draining",
        "epoch",
        "fenced",
        "full",
        "generation",
        "held",
        "in_flight",
        "in_ring",
        "lanes",
        "ledger",
        "map_ceiling",
        "parked",
        "partition",
        "ready",
        "state",
        "stopped",
        "target",
        "wrote_dense",
    )

    def __init__(
        self, partition: TopicPartition, epoch: int = 0, generation: Generation | None = None, base: int = 0
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.generation = generation or Generation(-1, "")
        self.ledger = Ledger(base)
        self.state = SessionState.OPENING
        # Offsets from here on are not admitted: the end offset of the start under until="end".
        self.target = sys.maxsize

        # The scheduler's.
        self.lanes: dict[Hashable, Record] = {}  # by key, the record that came last; see lanes.py
        self.ready: deque[Record] = deque()  # heads of lanes, and records without order
        self.in_ring = False
        self.buffered = 0
        self.buffered_bytes = 0
        self.parked = 0
        self.in_flight = 0
        self.stopped = False  # draining or dropped: outcomes take the slow path
        self.draining = 0  # records in flight or producing that a drain still waits for
        self.full = False  # too many parked: only retries start
        self.ceiling = NO_CEILING  # nothing above it starts without a closer look: map_ceiling, or -1 while full
        self.held: list[Record] = []  # ready, but not to be started now

        # The committer's.
        self.acknowledged: Committed | None = None
        self.acknowledged_version: Hashable = None
        self.fenced = False
        self.map_ceiling = NO_CEILING  # nothing above it starts (when_map_is_full="block")
        self.cut: int | None = None  # highest offset the last map could say, when it could not say all
        self.wrote_dense = False

    @property
    def current(self) -> bool:
        """Whether this session still owns its partition."""
        return self.state is not SessionState.DROPPED

    @property
    def dirty(self) -> bool:
        """Whether the broker has not acknowledged what the ledger says now."""
        return self.acknowledged_version != self.ledger.version

    def __repr__(self) -> str:
        return f"<Session {self.partition} epoch {self.epoch} {self.state.value}>"
