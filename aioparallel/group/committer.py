"""The committer: one coroutine that writes what ledgers say, and the one place that commits.

Of each group one commit is in flight at any time, under its lock; a settle waits its turn there. Groups have
coordinators of their own, so none waits for the one that does not answer. A session is clean only when the broker has
acknowledged exactly what was sampled, under the session's own generation (I7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.client import CommitFault, Generation
from aioparallel.group.committing import CommitStrategy, GroupContext, owed
from aioparallel.group.extensions import ExtendedOffsets
from aioparallel.group.offset_commits import MetadataLimit, Sample, ledger_snapshot, requests, sample
from aioparallel.group.sampling import Sampler
from aioparallel.group.sessions import COMMITTABLE, Session
from aioparallel.group.stores import BrokerOffsets, OffsetStore
from aioparallel.observe.health import Problem
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Committer", "in_group", "through"]

logger = logging.getLogger(__name__)

# Seconds between two tries of a commit that somebody waits for.
_RETRY_PAUSE = 0.1
# How often a commit that somebody waits for is refused before that is believed.
_REFUSALS = 2


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
        self._sessions = sessions
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by group
        self._early = asyncio.Event()
        blocks = options.when_map_is_full == "block"
        self._sampler = Sampler(options, scheduler, on_unblocked, blocks=blocks)
        self.limit = self._sampler.limit
        self.commits = 0
        self.failed_commits = 0

    async def run(self) -> None:
        """Commit for ever; ends by cancellation."""
        waiting: set[asyncio.Task[object]] = set()
        try:
            while True:
                rest = self._sampler.rest
                await asyncio.sleep(rest)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._options.commit_interval - rest)):
                        await self._early.wait()
                self._early.clear()
                self._sampler.begin_round()
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

    @property
    def cut_maps(self) -> int:
        """Maps that did not fit and were cut."""
        return self._sampler.cut_maps

    async def finish(self, sessions: Collection[Session], timeout: float) -> None:
        """Records end here when that is acknowledged."""

    def trouble(self) -> Sequence[str]:
        """The sessions tell it."""
        return ()

    def problems(self) -> Sequence[Problem]:
        """The sessions tell them all."""
        return ()

    def transactions(self) -> None:
        """There are none."""

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
                    if self._sampler.is_long:
                        await asyncio.sleep(0)  # building a full request is another millisecond
                    # Sampled sessions may have gone while others were encoded or committed, or be in another
                    # generation: then they are sampled anew.
                    still = [one for one in part if one.session.may_commit() and one.session.generation == generation]
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
        asked = {session: session.ledger.version for session in sessions if session.state in COMMITTABLE}
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
        return owed(asked, why)

    async def _samples(self, sessions: Iterable[Session]) -> list[Sample]:
        samples = []
        formats = self._options.offset_map_formats
        for session in sessions:
            if not (session.dirty and session.may_commit()):
                continue
            what = ledger_snapshot(session)
            one = await self._sampler.write(
                partial(sample, what, self.limit.characters, formats), is_large=what.is_large
            )
            if not session.may_commit():
                continue  # went while its map was written
            self._sampler.note(one, what.map)
            samples.append(one)
            await self._sampler.wrote(session)
        return samples

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
                self._sampler.acknowledged(asked[partition])
        bad = {partition: fault for partition, fault in faults.items() if fault is not None}
        if not bad:
            self.commits += 1
            return {}
        self.failed_commits += len(bad)
        self._tell(
            [asked[partition] for partition, fault in bad.items() if fault is not asked[partition].session.fault], bad
        )
        if large := [asked[partition] for partition, fault in bad.items() if fault is CommitFault.METADATA_TOO_LARGE]:
            self._sampler.too_large(large, len(asked))
        return {partition: self._refuse(asked[partition], fault, generation) for partition, fault in bad.items()}

    def _refuse(self, one: Sample, fault: CommitFault, generation: Generation) -> CommitFault:
        session = one.session
        session.fault = fault
        if fault is CommitFault.FENCED:
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


def _hopes(session: Session, version: tuple[int, int], refusals: Mapping[TopicPartition, int]) -> bool:
    """Whether a commit that somebody waits for is still to be tried."""
    return session.may_commit() and session.owes(version) and refusals.get(session.partition, 0) < _REFUSALS


def in_group(group: GroupContext) -> CommitStrategy:
    """Positions are the committed offsets of the group."""
    return through(BrokerOffsets(group.client), group, refuses_resets=group.options.state is not None)


def through(store: OffsetStore, group: GroupContext, *, longest_map: int | None = None, **also: Any) -> CommitStrategy:
    """Positions are kept in ``store``. ``longest_map``: characters of an offset map that it takes; None: as many as
    Kafka. ``also``: further fields of :class:`~aioparallel.group.committing.CommitStrategy`."""
    offsets = ExtendedOffsets(store, group.extensions)
    committer = Committer(offsets, group.options, group.scheduler, group.sessions, group.on_unblocked)
    if longest_map is not None:
        committer.limit.characters = longest_map
    return CommitStrategy(offsets, committer, **also)
