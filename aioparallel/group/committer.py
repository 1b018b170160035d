"""The committer: one coroutine that writes what ledgers say, and the one place that commits.

One commit is in flight at any time, under ``_lock``; a settle waits its turn there. A session is clean only
when the broker has acknowledged exactly what was sampled, under the session's own generation (I7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable

from aioparallel.engine.scheduler import Scheduler
from aioparallel.engine.sources import NO_CEILING
from aioparallel.group.client import Client, CommitFault, Generation
from aioparallel.group.offset_commits import MetadataLimit, Sample, requests, sample
from aioparallel.group.sessions import Session, SessionState
from aioparallel.options import Options

__all__ = ["Committer"]

logger = logging.getLogger(__name__)

# Incompletes encoded (up to a millisecond's worth) after which the event loop gets a turn. Counted, not timed:
# uvloop's clock stands still within a turn, and a simulation must take the same turns each time. One map is one
# step (I9): where it alone is larger, the turn comes right behind it (the largest take 1 to 3 ms).
_TURN = 2_000
# Seconds of rest after a round for each incomplete encoded in it: about four times what the encoding took, so that
# maps never take more than a fifth of the loop (500 partitions with full maps: 3 s a round).
_REST = 2e-6
# What a session costs besides its incompletes, in the same unit.
_SESSION_COST = 50
# Seconds between two tries of a commit that somebody waits for.
_RETRY_PAUSE = 0.1
_COMMITTABLE = (SessionState.OPEN, SessionState.DRAINING)


class Committer:
    """Commits dirty sessions every ``commit_interval`` seconds, or after ``commit_after`` completions."""

    def __init__(
        self,
        client: Client,
        options: Options,
        scheduler: Scheduler,
        sessions: Callable[[], Collection[Session]],
        on_unblocked: Callable[[], None],
    ) -> None:
        self._client = client
        self._options = options
        self._scheduler = scheduler
        self._sessions = sessions
        self._on_unblocked = on_unblocked
        self._lock = asyncio.Lock()
        self._early = asyncio.Event()
        self._cost = 0  # of the last round, in incompletes
        self.limit = MetadataLimit()
        self.commits = 0
        self.failed_commits = 0
        self.cut_maps = 0
        scheduler.tally.succeeded_left = options.commit_after

    async def run(self) -> None:
        """Commit for ever; ends by cancellation."""
        while True:
            rest = self._cost * _REST
            await asyncio.sleep(rest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._options.commit_interval - rest)):
                    await self._early.wait()
            self._early.clear()
            self._scheduler.tally.succeeded_left = self._options.commit_after
            await self.commit(self._sessions())

    def soon(self) -> None:
        """Commit now rather than at the end of the interval."""
        self._early.set()

    async def commit(self, sessions: Iterable[Session]) -> bool:
        """Commit what is dirty of these sessions. True when the broker took all that was to be said.

        A session that is fenced or gone has nothing to say any more: whoever owns its partition does.
        """
        wanted = list(sessions)
        async with self._lock:
            for _ in range(MetadataLimit.DEFAULT.bit_length() + 1):  # each refusal at least halves the limit
                faults: set[CommitFault] = set()
                for generation, part in requests(await self._samples(wanted)):
                    if self._cost > _TURN:
                        await asyncio.sleep(0)  # building a full request is another millisecond
                    # Sampled sessions may have gone while others were encoded or committed.
                    still = [one for one in part if _may_commit(one.session) and one.session.generation == generation]
                    if still:
                        faults |= await self._send(still, generation)
                if CommitFault.METADATA_TOO_LARGE not in faults:
                    break
        return faults <= {CommitFault.FENCED}

    async def commit_until(self, sessions: Collection[Session], deadline: float) -> bool:
        """Commit these sessions, trying again until the event loop's clock reaches ``deadline``."""
        try:
            async with asyncio.timeout_at(deadline):
                while not await self.commit(sessions):
                    await asyncio.sleep(_RETRY_PAUSE)
        except TimeoutError:
            return False
        return True

    async def _samples(self, sessions: Iterable[Session]) -> list[Sample]:
        samples, turn = [], 0
        self._cost = 0
        for session in sessions:
            if not (session.dirty and _may_commit(session)):
                continue
            one = sample(session, self.limit.characters, self._options.offset_map_formats)
            self._note_cut(one)
            samples.append(one)
            cost = len(session.ledger.incompletes) + _SESSION_COST
            self._cost += cost
            turn += cost
            if turn > _TURN:
                await asyncio.sleep(0)
                turn = 0
        return samples

    def _note_cut(self, one: Sample) -> None:
        session = one.session
        session.cut = one.highest if one.cut else None
        if one.cut:
            self.cut_maps += 1
        if self._options.when_map_is_full == "block":
            ceiling = one.highest if one.cut else NO_CEILING
            if ceiling != session.map_ceiling:
                self._scheduler.set_ceiling(session, ceiling)
                self._on_unblocked()

    async def _send(self, samples: list[Sample], generation: Generation) -> set[CommitFault]:
        """One commit request; the kinds of fault in its results."""
        asked = {one.session.partition: one for one in samples}
        results = await self._client.commit(
            {partition: one.committed for partition, one in asked.items()},
            generation,
            self._options.commit_timeout,
        )
        faults = {partition: results.get(partition, CommitFault.RETRIABLE) for partition in asked}
        for partition, fault in faults.items():
            if fault is None:
                self._acknowledge(asked[partition])
        bad = {partition: fault for partition, fault in faults.items() if fault is not None}
        for partition, fault in bad.items():
            self._refuse(asked[partition], fault, generation)
        if bad:
            self.failed_commits += len(bad)
        else:
            self.commits += 1
        return set(bad.values())

    def _acknowledge(self, one: Sample) -> None:
        session, text = one.session, one.committed.metadata
        session.acknowledged, session.acknowledged_version = one.committed, one.version
        self.limit.accepted(len(text))
        if text and not text.isascii() and not session.wrote_dense:
            session.wrote_dense = True
            logger.info(
                "%s: the offset map is now written in the dense format, which the Java library cannot read",
                session.partition,
                extra={"action": "dense_map"},
            )

    def _refuse(self, one: Sample, fault: CommitFault, generation: Generation) -> None:
        session = one.session
        if fault is CommitFault.METADATA_TOO_LARGE:
            self.limit.refused(len(one.committed.metadata))
            logger.warning(
                "%s: the broker does not take %d characters of commit metadata (offset.metadata.max.bytes); "
                "trying at most %d",
                session.partition,
                len(one.committed.metadata),
                self.limit.characters,
                extra={"action": "metadata_limit"},
            )
            return
        if fault is CommitFault.FENCED and session.generation == generation:
            # Only then: a cooperative rebalance may have kept the partition under a newer generation meanwhile.
            session.fenced = True
        logger.warning(
            "%s: commit of offset %d not taken: %s%s",
            session.partition,
            one.committed.offset,
            fault.value,
            "; it is tried again" if fault is CommitFault.RETRIABLE else "",
            extra={"action": "commit_failed", "fault": fault.value},
        )


def _may_commit(session: Session) -> bool:
    return not session.fenced and session.state in _COMMITTABLE
