"""Encodes the offset maps of assignments without blocking the event loop, and handles maps that do not fit."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.sources import NO_CEILING
from aioparallel.group.assignment import Assignment
from aioparallel.group.offset_commits import MetadataLimit, Sample, WrittenMaps
from aioparallel.offsets import OffsetMap

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# After so many encoded incomplete offsets (up to a millisecond) the event loop gets a turn. They are counted, not
# timed: uvloop's clock does not advance within a turn, and a simulation must take the same turns each time. One map is
# one step. A larger map takes 1 to 3 ms (measured on a quiet machine), and the turn comes after it. A map that may take
# longer is encoded in a thread (LedgerSnapshot.is_large).
_TURN = 2_000
# Seconds of rest after a round for each incomplete offset encoded in it: about four times the encoding time. So maps
# never take more than a fifth of the loop (500 partitions with full maps: 3 s a round).
_REST = 2e-6
# The cost of an assignment without its incomplete offsets, in the same unit.
_SESSION_COST = 50


class Sampler:
    """The part of a committer that encodes offset maps. ``blocks``: whether records above a cut map may not start.
    ``on_unblocked()`` is called when more records may start."""

    def __init__(
        self, options: Options, scheduler: Scheduler, on_unblocked: Callable[[], None], *, blocks: bool
    ) -> None:
        self._blocks = blocks
        self._options = options
        self._scheduler = scheduler
        self._on_unblocked = on_unblocked
        self._cost = 0  # of this round, in incomplete offsets
        self._turn = 0
        self.limit = MetadataLimit()
        self.maps = WrittenMaps()
        self.cut_maps = 0
        """How many maps did not fit and were cut."""
        scheduler.counters.succeeded_left = options.commit_after

    @property
    def rest(self) -> float:
        """Seconds to wait after the work done since :meth:`begin_round`."""
        return self._cost * _REST

    def begin_round(self) -> None:
        """Reset the cost, and the countdown to an early commit."""
        self._cost = 0
        self._scheduler.counters.succeeded_left = self._options.commit_after

    @property
    def is_long(self) -> bool:
        """Whether this round takes too long for one turn of the loop."""
        return self._cost > _TURN

    async def write(self, write: Callable[[], T], *, is_large: bool) -> T:
        """Call ``write()``, which encodes a map. A large map would block the loop, so it is encoded in a new thread.
        The loop's default executor is not used, because handlers may occupy all its threads."""
        began = perf_counter()
        if not is_large:
            written = write()
        else:
            thread = ThreadPoolExecutor(1, thread_name_prefix="aioparallel-map")
            try:
                written = await asyncio.get_running_loop().run_in_executor(thread, write)
            finally:
                thread.shutdown(wait=False)  # a cancelled caller must not wait for the map
        self.maps.wrote(perf_counter() - began)
        return written

    async def wrote(self, assignment: Assignment, maps: int = 1) -> None:
        """Count the cost of encoded maps of an assignment, and let the loop turn if enough was encoded."""
        cost = maps * len(assignment.ledger.incompletes) + _SESSION_COST
        self._cost += cost
        self._turn += cost
        if self._turn > _TURN:
            await asyncio.sleep(0)
            self._turn = 0

    def acknowledged(self, one: Sample) -> None:
        """Note that the broker has acknowledged exactly this sample."""
        assignment, text = one.assignment, one.committed.metadata
        assignment.acknowledged, assignment.acknowledged_version, assignment.fault = one.committed, one.version, None
        assignment.promised = one.highest
        if assignment.truncated is not None and one.committed.offset > assignment.truncated[1]:
            assignment.truncated = None
        if not assignment.dropped:  # an answer may come after released()
            for state in assignment.partition_states:
                state.acknowledged()
        self.limit.accepted(len(text))
        if text and not text.isascii() and not assignment.wrote_dense:
            assignment.wrote_dense = True
            logger.info(
                "%s: the offset map is now written in the dense format, which the Java library cannot read",
                assignment.partition,
                extra={"action": "dense_map"},
            )

    def too_large(self, refused: Sequence[Sample], asked: int) -> None:
        """Lower the metadata limit after the broker refused these samples of a request with ``asked`` samples.

        If it refused all of several, the request as a whole may be too large (``message.max.bytes``). That says
        something about the longest text only.
        """
        counted = refused if len(refused) < asked else [max(refused, key=lambda one: len(one.committed.metadata))]
        for one in counted:
            self.limit.refused(len(one.committed.metadata))
            logger.warning(
                "%s: the broker does not accept %d characters of commit metadata (offset.metadata.max.bytes), or %d "
                "partitions at once are too large (message.max.bytes); trying at most %d",
                one.assignment.partition,
                len(one.committed.metadata),
                asked,
                self.limit.characters,
                extra={"action": "metadata_limit"},
            )

    def note(self, one: Sample, wanted: OffsetMap, least: int = -1) -> None:
        """Note whether the map was cut, and set the ceiling of the assignment. ``wanted``: the whole map. ``least``:
        records up to this offset may start in any case."""
        assignment = one.assignment
        assignment.cut = one.highest if one.cut else None
        if one.cut:
            self.cut_maps += 1
        if self._blocks:
            # The record at the base must always start, even if no map fits: nothing else moves the base.
            ceiling = max(one.highest, wanted.base_offset, least) if one.cut else NO_CEILING
            if one.cut:
                # Records above the ceiling wait for a commit. Commit when half of the records below it have ended.
                enough = max(1, bisect_right(wanted.incompletes, ceiling) // 2)
                self._scheduler.counters.succeeded_left = min(self._scheduler.counters.succeeded_left, enough)
            if ceiling != assignment.map_ceiling:
                self._scheduler.set_ceiling(assignment, ceiling)
                self._on_unblocked()

    def hold_back(self, assignment: Assignment) -> None:
        """Start nothing of this assignment until :meth:`note` sets another ceiling."""
        if not self.is_held_back(assignment):
            self._scheduler.set_ceiling(assignment, -1)

    @staticmethod
    def is_held_back(assignment: Assignment) -> bool:
        """Whether :meth:`hold_back` was called and no other ceiling was set since."""
        return assignment.map_ceiling < 0
