"""The committer: one coroutine that commits the ledgers of the assignments. Nothing else commits.

Each group has one commit in flight at any time, guarded by a lock; a settle waits for that lock. Each group has its own
coordinator, so a coordinator that does not answer delays no other group. An assignment is clean only when the broker
has acknowledged exactly what was sampled, in the assignment's own generation (I7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.event_loop.waiting import OutOfTime, within
from aioparallel.group.assignment import COMMITTABLE, Assignment
from aioparallel.group.client import CommitFault, Generation
from aioparallel.group.committing import CommitStrategy, GroupContext, PositionCommitter, owed
from aioparallel.group.extensions import ExtendedOffsets
from aioparallel.group.offset_commits import MetadataLimit, Sample, ledger_snapshot, requests, sample
from aioparallel.group.offset_stores import BrokerOffsets, OffsetStore
from aioparallel.group.sampling import Sampler
from aioparallel.records.record import TopicPartition

__all__ = ["Committer", "in_group", "through"]

logger = logging.getLogger(__name__)

# Seconds between two tries in commit_until().
_RETRY_PAUSE = 0.1
# After so many refusals commit_until() gives up.
_REFUSALS = 2


class Committer(PositionCommitter):
    """Commits dirty assignments every ``commit_interval`` seconds, or after ``commit_after`` completions."""

    def __init__(
        self,
        store: OffsetStore,
        options: Options,
        scheduler: Scheduler,
        assignments: Callable[[], Collection[Assignment]],
        on_unblocked: Callable[[], None],
    ) -> None:
        self._store = store
        self._options = options
        self._assignments = assignments
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by group
        self._early = asyncio.Event()
        blocks = options.when_map_is_full == "block"
        self._sampler = Sampler(options, scheduler, on_unblocked, blocks=blocks)
        self.limit, self.maps = self._sampler.limit, self._sampler.maps
        self.commits = 0
        self.failed_commits = 0

    async def run(self) -> None:
        """Commit at intervals until cancelled."""
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
        """Commit all assignments. ``waiting``: commits of single groups that have no answer yet; this changes it."""
        groups = _by_group(self._assignments())
        if len(groups) <= 1 and not waiting:
            await self.commit(self._assignments())
            return
        for group, assignments in groups.items():
            if not self._locks[group].locked():
                waiting.add(asyncio.create_task(self._commit(group, assignments), name=f"aioparallel-commit-{group}"))
        if not waiting:
            return  # each group is committing in a settle now
        done, _ = await asyncio.wait(waiting, timeout=self._options.commit_interval)
        waiting -= done
        for task in done:
            task.result()

    @property
    def cut_maps(self) -> int:
        """How many maps did not fit and were cut."""
        return self._sampler.cut_maps

    async def finish(self, assignments: Collection[Assignment], timeout: float) -> None:
        """Return at once: records end only when their outputs are acknowledged."""

    def soon(self) -> None:
        """Commit now rather than at the end of the interval."""
        self._early.set()

    async def commit(self, assignments: Iterable[Assignment]) -> Mapping[TopicPartition, CommitFault]:
        """Commit the dirty ones of these assignments. Returns the partitions whose commit was not acknowledged, and
        why.

        An assignment that is gone is not committed: its partition may have another owner.
        """
        groups = _by_group(assignments)
        if len(groups) <= 1:
            for group, wanted in groups.items():
                return await self._commit(group, wanted)
            return {}
        found = await asyncio.gather(*[self._commit(group, wanted) for group, wanted in groups.items()])
        return {partition: fault for faults in found for partition, fault in faults.items()}

    async def _commit(self, group: str, wanted: Sequence[Assignment]) -> Mapping[TopicPartition, CommitFault]:
        async with self._locks[group]:
            for _ in range(MetadataLimit.DEFAULT.bit_length() + 1):  # each refusal at least halves the limit
                faults: dict[TopicPartition, CommitFault] = {}
                for generation, part in requests(await self._samples(wanted)):
                    if self._sampler.is_long:
                        await asyncio.sleep(0)  # building a full request is another millisecond
                    # A sampled assignment may have gone, or moved to another generation, while others were encoded or
                    # committed. Then it is RETRIABLE, and the next commit samples it again.
                    still = [
                        one for one in part if one.assignment.may_commit() and one.assignment.generation == generation
                    ]
                    faults |= {one.assignment.partition: CommitFault.RETRIABLE for one in part if one not in still}
                    if still:
                        faults |= await self._send(still, generation)
                if CommitFault.METADATA_TOO_LARGE not in faults.values():
                    break
        fenced = {
            assignment.partition: CommitFault.FENCED for assignment in wanted if assignment.fenced and assignment.dirty
        }
        return faults | fenced

    async def commit_until(
        self, assignments: Iterable[Assignment], deadline: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Commit the current ledgers, and try again until ``deadline``. Returns whose commits failed, and why."""
        asked = {assignment: assignment.ledger.version for assignment in assignments if assignment.state in COMMITTABLE}
        why: dict[TopicPartition, CommitFault] = {}
        with contextlib.suppress(OutOfTime):  # a TimeoutError of an extension is an error like any other
            await within(asyncio.timeout_at(deadline), self._commit_all(asked, why))
        return owed(asked, why)

    async def _commit_all(
        self, asked: Mapping[Assignment, tuple[int, int]], why: dict[TopicPartition, CommitFault]
    ) -> None:
        """Commit until all of these versions are acknowledged, or it is no use. ``why``: gets the faults."""
        refusals: Counter[TopicPartition] = Counter()
        while owing := [assignment for assignment, version in asked.items() if _may_try(assignment, version, refusals)]:
            if why:
                await asyncio.sleep(_RETRY_PAUSE)
            faults = await self.commit(owing)
            why |= faults
            refusals.update(p for p, fault in faults.items() if fault is CommitFault.REFUSED)

    async def _samples(self, assignments: Iterable[Assignment]) -> list[Sample]:
        samples = []
        formats = self._options.offset_map_formats
        for assignment in assignments:
            if not (assignment.dirty and assignment.may_commit()):
                continue
            what = ledger_snapshot(assignment)
            one = await self._sampler.write(
                partial(sample, what, self.limit.characters, formats), is_large=what.is_large
            )
            if not assignment.may_commit():
                continue  # it has gone while its map was written
            self._sampler.note(one, what.map)
            samples.append(one)
            await self._sampler.wrote(assignment)
        return samples

    async def _send(self, samples: list[Sample], generation: Generation) -> dict[TopicPartition, CommitFault]:
        """Send one commit request. Returns its faults."""
        asked = {one.assignment.partition: one for one in samples}
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
        self._log(
            [asked[partition] for partition, fault in bad.items() if fault is not asked[partition].assignment.fault],
            bad,
        )
        if large := [asked[partition] for partition, fault in bad.items() if fault is CommitFault.METADATA_TOO_LARGE]:
            self._sampler.too_large(large, len(asked))
        return {partition: self._refuse(asked[partition], fault, generation) for partition, fault in bad.items()}

    def _refuse(self, one: Sample, fault: CommitFault, generation: Generation) -> CommitFault:
        assignment = one.assignment
        assignment.fault = fault
        if assignment.generation != generation and fault in (CommitFault.FENCED, CommitFault.RETRIABLE):
            # A rebalance has moved the kept partition to a newer generation meanwhile.
            self.soon()
            return CommitFault.RETRIABLE
        if fault is CommitFault.FENCED:
            assignment.fenced = True
        return fault

    def _log(self, samples: list[Sample], faults: Mapping[TopicPartition, CommitFault]) -> None:
        """Log a line for each kind of fault. ``samples``: those whose fault is not the same as the last time."""
        by_fault: defaultdict[CommitFault, list[Sample]] = defaultdict(list)
        for one in samples:
            by_fault[faults[one.assignment.partition]].append(one)
        by_fault.pop(CommitFault.METADATA_TOO_LARGE, None)  # logged by Sampler.too_large()
        for fault, group in by_fault.items():
            first = group[0]
            logger.warning(
                "%s: commit of offset %d failed: %s%s%s",
                first.assignment.partition,
                first.committed.offset,
                fault.value,
                "; it is tried again" if fault is CommitFault.RETRIABLE else "",
                f" (and {len(group) - 1} more partitions)" if len(group) > 1 else "",
                extra={"action": "commit_failed", "fault": fault.value, "partitions": len(group)},
            )


def _by_group(assignments: Iterable[Assignment]) -> dict[str, list[Assignment]]:
    groups: defaultdict[str, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        groups[assignment.generation.group].append(assignment)
    return groups


def _may_try(assignment: Assignment, version: tuple[int, int], refusals: Mapping[TopicPartition, int]) -> bool:
    return assignment.may_commit() and assignment.owes(version) and refusals.get(assignment.partition, 0) < _REFUSALS


def in_group(group: GroupContext) -> CommitStrategy:
    """Commit to the committed offsets of the group."""
    return through(BrokerOffsets(group.client), group, refuses_resets=group.options.state is not None)


def through(store: OffsetStore, group: GroupContext, *, longest_map: int | None = None, **also: Any) -> CommitStrategy:
    """Commit to ``store``. ``longest_map``: characters of an offset map that it accepts; None: as many as Kafka.
    ``also``: further fields of :class:`~aioparallel.group.committing.CommitStrategy`."""
    offsets = ExtendedOffsets(store, group.extensions)
    committer = Committer(offsets, group.options, group.scheduler, group.assignments, group.on_unblocked)
    if longest_map is not None:
        committer.limit.characters = longest_map
    return CommitStrategy(offsets, committer, **also)
