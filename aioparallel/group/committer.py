"""The committer: one coroutine that writes what ledgers say, and the one place that commits.

Of each group one commit is in flight at any time, under its lock; a settle waits its turn there. Groups have
coordinators of their own, so none waits for the one that does not answer. A session is clean only when the broker has
acknowledged exactly what was sampled, under the session's own generation (I7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from aioparallel.engine.scheduler import Scheduler
from aioparallel.engine.sources import NO_CEILING
from aioparallel.group.client import CommitFault, Generation
from aioparallel.group.offset_commits import MetadataLimit, Said, Sample, requests, said, sample
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.stores import OffsetStore
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Committer", "reasons"]

logger = logging.getLogger(__name__)

# Incompletes encoded (up to a millisecond's worth) after which the event loop gets a turn. Counted, not timed:
# uvloop's clock stands still within a turn, and a simulation must take the same turns each time. One map is one
# step: where it alone is larger, the turn comes right behind it (1 to 3 ms, measured on a quiet machine; what may take
# longer is written in a thread, which leaves the loop its turns, see Said.is_large).
_TURN = 2_000
# Seconds of rest after a round for each incomplete encoded in it: about four times what the encoding took, so that
# maps never take more than a fifth of the loop (500 partitions with full maps: 3 s a round).
_REST = 2e-6
# What a session costs besides its incompletes, in the same unit.
_SESSION_COST = 50
# Seconds between two tries of a commit that somebody waits for.
_RETRY_PAUSE = 0.1
# How often a commit that somebody waits for is refused before that is believed.
_REFUSALS = 2
_COMMITTABLE = (SessionState.OPEN, SessionState.DRAINING)


class Committer:
    """Commits dirty sessions every ``commit_interval`` seconds, or after ``commit_after`` completions."""

    def __init__(
        self,
        store: OffsetStore,
        options: Options,
        scheduler: Scheduler,
        sessions: Callable[[], Collection[Session]],
        on_unblocked: Callable[[], None],
    ) -> None:
        self._store = store
        self._options = options
        self._scheduler = scheduler
        self._sessions = sessions
        self._on_unblocked = on_unblocked
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by group
        self._early = asyncio.Event()
        self._cost = 0  # since the last round began, in incompletes
        self.limit = MetadataLimit()
        self.commits = 0
        self.failed_commits = 0
        self.cut_maps = 0
        scheduler.tally.succeeded_left = options.commit_after

    async def run(self) -> None:
        """Commit for ever; ends by cancellation."""
        waiting: set[asyncio.Task[object]] = set()
        try:
            while True:
                rest = self._cost * _REST
                await asyncio.sleep(rest)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._options.commit_interval - rest)):
                        await self._early.wait()
                self._early.clear()
                self._scheduler.tally.succeeded_left = self._options.commit_after
                self._cost = 0
                await self._round(waiting)
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _round(self, waiting: set[asyncio.Task[object]]) -> None:
        """Commit all. ``waiting``: commits of single groups that have waited for an answer since before, and do when
        this returns."""
        groups = _by_group(self._sessions())
        if len(groups) <= 1 and not waiting:
            await self.commit(self._sessions())
            return
        for group, sessions in groups.items():
            if not self._locks[group].locked():
                waiting.add(asyncio.create_task(self._commit(group, sessions), name=f"aioparallel-commit-{group}"))
        if not waiting:
            return  # each is given away now
        done, _ = await asyncio.wait(waiting, timeout=self._options.commit_interval)
        waiting -= done
        for task in done:
            task.result()

    def soon(self) -> None:
        """Commit now rather than at the end of the interval."""
        self._early.set()

    async def commit(self, sessions: Iterable[Session]) -> Mapping[TopicPartition, CommitFault]:
        """Commit what is dirty of these sessions. Returns whose commit was not taken, and why.

        A session that is gone has nothing to say any more: whoever owns its partition does.
        """
        groups = _by_group(sessions)
        if len(groups) <= 1:
            for group, wanted in groups.items():
                return await self._commit(group, wanted)
            return {}
        found = await asyncio.gather(*[self._commit(group, wanted) for group, wanted in groups.items()])
        return {partition: fault for faults in found for partition, fault in faults.items()}

    async def _commit(self, group: str, wanted: Sequence[Session]) -> Mapping[TopicPartition, CommitFault]:
        async with self._locks[group]:
            for _ in range(MetadataLimit.DEFAULT.bit_length() + 1):  # each refusal at least halves the limit
                faults: dict[TopicPartition, CommitFault] = {}
                for generation, part in requests(await self._samples(wanted)):
                    if self._cost > _TURN:
                        await asyncio.sleep(0)  # building a full request is another millisecond
                    # Sampled sessions may have gone while others were encoded or committed, or be in another
                    # generation: then they are sampled anew.
                    still = [one for one in part if _may_commit(one.session) and one.session.generation == generation]
                    faults |= {one.session.partition: CommitFault.RETRIABLE for one in part if one not in still}
                    if still:
                        faults |= await self._send(still, generation)
                if CommitFault.METADATA_TOO_LARGE not in faults.values():
                    break
        fenced = {session.partition: CommitFault.FENCED for session in wanted if session.fenced and session.dirty}
        return faults | fenced

    async def commit_until(self, sessions: Iterable[Session], deadline: float) -> Mapping[TopicPartition, CommitFault]:
        """Commit what these sessions have to say now, trying again until the event loop's clock reaches ``deadline``;
        what is refused is tried once more, what is fenced is not. Returns whose commit was not taken, and why."""
        asked = {session: session.ledger.version for session in sessions if session.state in _COMMITTABLE}
        why: dict[TopicPartition, CommitFault] = {}
        refusals: Counter[TopicPartition] = Counter()
        try:
            async with asyncio.timeout_at(deadline):
                while owing := [session for session, version in asked.items() if _hopes(session, version, refusals)]:
                    if why:
                        await asyncio.sleep(_RETRY_PAUSE)
                    faults = await self.commit(owing)
                    why |= faults
                    refusals.update(p for p, fault in faults.items() if fault is CommitFault.REFUSED)
        except TimeoutError:
            pass
        # One that went meanwhile without this commit has another owner now.
        gone = {session.partition: CommitFault.FENCED for session in asked if not session.current}
        return {
            session.partition: gone.get(session.partition) or why.get(session.partition, CommitFault.RETRIABLE)
            for session, version in asked.items()
            if session.owes(version)
        }

    async def _samples(self, sessions: Iterable[Session]) -> list[Sample]:
        samples, turn = [], 0
        for session in sessions:
            if not (session.dirty and _may_commit(session)):
                continue
            what = said(session)
            one = await self._sample(what)
            if not _may_commit(session):
                continue  # went while its map was written
            self._note_cut(one, what.map.incompletes)
            samples.append(one)
            cost = len(session.ledger.incompletes) + _SESSION_COST
            self._cost += cost
            turn += cost
            if turn > _TURN:
                await asyncio.sleep(0)
                turn = 0
        return samples

    async def _sample(self, what: Said) -> Sample:
        """Write what a session says; a large map in a thread of its own, for the loop would stand still meanwhile. Not
        in the loop's own threads: handlers may have taken them all."""
        limit, formats = self.limit.characters, self._options.offset_map_formats
        if not what.is_large:
            return sample(what, limit, formats)
        thread = ThreadPoolExecutor(1, thread_name_prefix="aioparallel-map")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, sample, what, limit, formats)
        finally:
            thread.shutdown(wait=False)  # whoever is cancelled here does not wait for the map

    def _note_cut(self, one: Sample, incompletes: Sequence[int]) -> None:
        session = one.session
        session.cut = one.highest if one.cut else None
        if one.cut:
            self.cut_maps += 1
        if self._options.when_map_is_full == "block":
            # Where no map fits at all, the record at the base must start: nothing else ever moves the base.
            ceiling = max(one.highest, one.committed.offset) if one.cut else NO_CEILING
            if one.cut:
                # What waits above the ceiling waits for a commit: soon after half of what may start has ended.
                enough = max(1, bisect_right(incompletes, ceiling) // 2)
                self._scheduler.tally.succeeded_left = min(self._scheduler.tally.succeeded_left, enough)
            if ceiling != session.map_ceiling:
                self._scheduler.set_ceiling(session, ceiling)
                self._on_unblocked()

    async def _send(self, samples: list[Sample], generation: Generation) -> dict[TopicPartition, CommitFault]:
        """One commit request; the faults in its results."""
        asked = {one.session.partition: one for one in samples}
        results = await self._store.commit(
            {partition: one.committed for partition, one in asked.items()},
            generation,
            self._options.commit_timeout,
        )
        faults = {partition: results.get(partition, CommitFault.RETRIABLE) for partition in asked}
        for partition, fault in faults.items():
            if fault is None:
                self._acknowledge(asked[partition])
        bad = {partition: fault for partition, fault in faults.items() if fault is not None}
        if not bad:
            self.commits += 1
            return {}
        self.failed_commits += len(bad)
        self._tell(
            [asked[partition] for partition, fault in bad.items() if fault is not asked[partition].session.fault], bad
        )
        return {partition: self._refuse(asked[partition], fault, generation) for partition, fault in bad.items()}

    def _acknowledge(self, one: Sample) -> None:
        session, text = one.session, one.committed.metadata
        session.acknowledged, session.acknowledged_version, session.fault = one.committed, one.version, None
        self.limit.accepted(len(text))
        if text and not text.isascii() and not session.wrote_dense:
            session.wrote_dense = True
            logger.info(
                "%s: the offset map is now written in the dense format, which the Java library cannot read",
                session.partition,
                extra={"action": "dense_map"},
            )

    def _refuse(self, one: Sample, fault: CommitFault, generation: Generation) -> CommitFault:
        session = one.session
        session.fault = fault
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
        elif fault is CommitFault.FENCED:
            if session.generation != generation:
                # A cooperative rebalance has kept the partition under a newer generation meanwhile.
                return CommitFault.RETRIABLE
            session.fenced = True
        return fault

    def _tell(self, samples: list[Sample], faults: Mapping[TopicPartition, CommitFault]) -> None:
        """A line for each kind of fault; the same again is told when something else has come between."""
        by_fault: defaultdict[CommitFault, list[Sample]] = defaultdict(list)
        for one in samples:
            by_fault[faults[one.session.partition]].append(one)
        by_fault.pop(CommitFault.METADATA_TOO_LARGE, None)  # is told with the limit
        for fault, group in by_fault.items():
            first = group[0]
            logger.warning(
                "%s: commit of offset %d not taken: %s%s%s",
                first.session.partition,
                first.committed.offset,
                fault.value,
                "; it is tried again" if fault is CommitFault.RETRIABLE else "",
                f" (and {len(group) - 1} more partitions)" if len(group) > 1 else "",
                extra={"action": "commit_failed", "fault": fault.value, "partitions": len(group)},
            )


def _by_group(sessions: Iterable[Session]) -> dict[str, list[Session]]:
    groups: defaultdict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        groups[session.generation.group].append(session)
    return groups


def _may_commit(session: Session) -> bool:
    return not session.fenced and session.state in _COMMITTABLE


def _hopes(session: Session, version: tuple[int, int], refusals: Mapping[TopicPartition, int]) -> bool:
    """Whether a commit that somebody waits for is still to be tried."""
    return _may_commit(session) and session.owes(version) and refusals.get(session.partition, 0) < _REFUSALS


_REASONS = {
    CommitFault.RETRIABLE: "no answer within the deadline; the next commit tries again",
    CommitFault.METADATA_TOO_LARGE: "the broker takes no metadata of that length",
    CommitFault.FENCED: "fenced: the partition may have another owner",
    CommitFault.REFUSED: "refused: not authorised, or the topic is gone",
}


def reasons(owing: Mapping[TopicPartition, CommitFault]) -> dict[TopicPartition, str]:
    """Why commits were not acknowledged, in words."""
    return {partition: _REASONS[fault] for partition, fault in owing.items()}
