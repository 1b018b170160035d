"""Taking samples of what sessions say, such that the event loop keeps its turns, and noting what did not fit."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aioparallel.engine.scheduler import Scheduler
from aioparallel.engine.sources import NO_CEILING
from aioparallel.group.offset_commits import MetadataLimit, Sample
from aioparallel.group.sessions import Session
from aioparallel.offsets import OffsetMap
from aioparallel.options import Options

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Incompletes encoded (up to a millisecond's worth) after which the event loop gets a turn. Counted, not timed:
# uvloop's clock stands still within a turn, and a simulation must take the same turns each time. One map is one
# step: where it alone is larger, the turn comes right behind it (1 to 3 ms, measured on a quiet machine; what may take
# longer is written in a thread, which leaves the loop its turns, see LedgerSnapshot.is_large).
_TURN = 2_000
# Seconds of rest after a round for each incomplete encoded in it: about four times what the encoding took, so that
# maps never take more than a fifth of the loop (500 partitions with full maps: 3 s a round).
_REST = 2e-6
# What a session costs besides its incompletes, in the same unit.
_SESSION_COST = 50


class Sampler:
    """What committers share. ``blocks``: whether nothing starts that is above what a cut map can say.
    ``on_unblocked()``: more may start."""

    def __init__(
        self, options: Options, scheduler: Scheduler, on_unblocked: Callable[[], None], *, blocks: bool
    ) -> None:
        self._blocks = blocks
        self._options = options
        self._scheduler = scheduler
        self._on_unblocked = on_unblocked
        self._cost = 0  # since the last round began, in incompletes
        self._turn = 0
        self.limit = MetadataLimit()
        self.cut_maps = 0
        """Maps that did not fit and were cut."""
        scheduler.counters.succeeded_left = options.commit_after

    @property
    def rest(self) -> float:
        """Seconds that the loop should have for others, after what was written since :meth:`begin_round`."""
        return self._cost * _REST

    def begin_round(self) -> None:
        """Count anew, what is to come early too."""
        self._cost = 0
        self._scheduler.counters.succeeded_left = self._options.commit_after

    @property
    def is_long(self) -> bool:
        """Whether this round takes longer than the loop should wait."""
        return self._cost > _TURN

    async def write(self, write: Callable[[], T], *, is_large: bool) -> T:
        """``write()``, which writes what a session says; a large map in a thread of its own, for the loop would stand
        still meanwhile. Not in the loop's own threads: handlers may have taken them all."""
        if not is_large:
            return write()
        thread = ThreadPoolExecutor(1, thread_name_prefix="aioparallel-map")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, write)
        finally:
            thread.shutdown(wait=False)  # whoever is cancelled here does not wait for the map

    async def wrote(self, session: Session, maps: int = 1) -> None:
        """Something was written of it: count that, and let the loop turn where that was much."""
        cost = maps * len(session.ledger.incompletes) + _SESSION_COST
        self._cost += cost
        self._turn += cost
        if self._turn > _TURN:
            await asyncio.sleep(0)
            self._turn = 0

    def acknowledged(self, one: Sample) -> None:
        """The broker has exactly this now."""
        session, text = one.session, one.committed.metadata
        session.acknowledged, session.acknowledged_version, session.fault = one.committed, one.version, None
        session.promised = one.highest
        if session.truncated is not None and one.committed.offset > session.truncated[1]:
            session.truncated = None
        for state in session.partition_states:
            state.acknowledged()
        self.limit.accepted(len(text))
        if text and not text.isascii() and not session.wrote_dense:
            session.wrote_dense = True
            logger.info(
                "%s: the offset map is now written in the dense format, which the Java library cannot read",
                session.partition,
                extra={"action": "dense_map"},
            )

    def too_large(self, refused: Sequence[Sample], asked: int) -> None:
        """The broker does not take so much metadata: of these, out of so many that it was asked for at once. Where all
        of several are refused, it may be for what they are together (``message.max.bytes``): that tells something about
        the longest, and nothing about a short one."""
        heard = refused if len(refused) < asked else [max(refused, key=lambda one: len(one.committed.metadata))]
        for one in heard:
            self.limit.refused(len(one.committed.metadata))
            logger.warning(
                "%s: the broker does not take %d characters of commit metadata (offset.metadata.max.bytes), or %d "
                "partitions at once are too large (message.max.bytes); trying at most %d",
                one.session.partition,
                len(one.committed.metadata),
                asked,
                self.limit.characters,
                extra={"action": "metadata_limit"},
            )

    def note(self, one: Sample, said: OffsetMap, least: int = -1) -> None:
        """Whether the map did not fit, and what may start then. ``said``: what was to be said. ``least``: up to there
        all may."""
        session = one.session
        session.cut = one.highest if one.cut else None
        if one.cut:
            self.cut_maps += 1
        if self._blocks:
            # Where no map fits at all, the record at the base must start: nothing else ever moves the base.
            ceiling = max(one.highest, said.base_offset, least) if one.cut else NO_CEILING
            if one.cut:
                # What waits above the ceiling waits for a commit: soon after half of what may start has ended.
                enough = max(1, bisect_right(said.incompletes, ceiling) // 2)
                self._scheduler.counters.succeeded_left = min(self._scheduler.counters.succeeded_left, enough)
            if ceiling != session.map_ceiling:
                self._scheduler.set_ceiling(session, ceiling)
                self._on_unblocked()

    def hold_back(self, session: Session) -> None:
        """Start nothing of it, until :meth:`note` says otherwise."""
        if not self.is_held_back(session):
            self._scheduler.set_ceiling(session, -1)

    @staticmethod
    def is_held_back(session: Session) -> bool:
        """Whether nothing of it starts."""
        return session.map_ceiling < 0
