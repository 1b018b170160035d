"""The companion of a consumer that keeps a state: restored before a partition's first record, saved with commits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from aioparallel.delivery.producer import Producer
from aioparallel.errors import BrokerUnreachable, ClientError, ProduceFailed
from aioparallel.group.client import CommitFault, Committed
from aioparallel.group.sessions import Session
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import StateStats
from aioparallel.options import Options
from aioparallel.records import Outgoing, Produced, TopicPartition
from aioparallel.state.increments import Increment, encode_increment, encode_place
from aioparallel.state.restoring import Restoring
from aioparallel.state.table import Table
from aioparallel.state.topics import StateTopics
from aioparallel.state.view import Restored, StateView
from aioparallel.state.writing import DumpFailed, write_snapshot

__all__ = ["KeyedState"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Partitions that are restored beside each other."""
_PAUSE: Final = 1.0
"""Seconds until a restore without an answer is tried again."""
_LATE: Final = 10.0
"""Seconds for which an increment that was committed with a position may be invisible: the brokers mark the end of a
transaction in one partition after the other."""
_LOOK_AGAIN: Final = 0.1
_TELL: Final = 5.0
"""Seconds between two lines about restores that go on."""
_REQUEST: Final = 10.0
_LOOK: Final = 1.0
"""Seconds between two looks at which full snapshots are due."""
_REST: Final = 30.0
"""Seconds until one that could not be written is tried again."""
_TOLD: Final = 10
"""Partitions that are told of one by one."""

_Write = asyncio.Future[ProduceFailed | None]


class KeyedState:
    """A :class:`~aioparallel.group.companions.TransactionalCompanion`.

    ``producer``: writes full snapshots at any time, and increments where they are no part of a transaction.
    ``is_transactional``: whether they are. Made within the running event loop.
    """

    def __init__(self, topics: StateTopics, options: Options, producer: Producer, *, is_transactional: bool) -> None:
        assert options.state is not None
        self.left_out = 0
        self._topics = topics
        self._options = options
        self._policy = options.state
        self._producer = producer
        self._is_transactional = is_transactional
        self._views: dict[TopicPartition, StateView] = {}
        self._restores: dict[TopicPartition, _Restore] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._writes: dict[TopicPartition, _Write] = {}  # increments without an answer yet
        self._unsaved: dict[TopicPartition, str] = {}  # and why
        self._unwritten: dict[TopicPartition, str] = {}  # full snapshots, and why
        self._rests_until = 0.0
        self._snapshots: asyncio.Task[None] | None = None
        self._progress: asyncio.Task[None] | None = None
        self._restored = self._replayed = self._written = 0

    # -- restoring --------------------------------------------------------------------------------------

    def beside(self, session: Session) -> StateView:
        """See :class:`~aioparallel.group.companions.Companion`."""
        self._forget(session.partition)
        view = self._views[session.partition] = StateView(self._policy, session, time.time)
        return view

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.companions.Companion`. Each is ready by itself."""
        asked: dict[TopicPartition, _Restore] = {}
        for partition, committed in found.items():
            if (view := self._views.get(partition)) is None:
                continue
            restore = self._restores.get(partition)
            if restore is None or restore.committed != committed:
                if restore is not None:
                    restore.task.cancel()
                restore = self._restores[partition] = _Restore(self, view, committed)
            asked[partition] = restore
        self._tell_progress()
        left = [restore.task for restore in asked.values() if not restore.is_ready]
        if left:
            await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for restore in asked.values():
            if restore.task.done() and not restore.task.cancelled() and (error := restore.task.exception()):
                raise error
        return [partition for partition, restore in asked.items() if restore.is_ready]

    async def _restore(self, restore: _Restore) -> None:
        view, committed = restore.view, restore.committed
        partition = view.session.partition
        began = asyncio.get_running_loop().time()
        if committed is None:
            found = Restored(Table(), None, (), (), 0)
        else:
            async with self._room:
                found = await self._until_answered(restore, committed)
        if self._views.get(partition) is not view:
            return
        view.restore(found)
        self._restored += 1
        self._replayed += found.replayed
        self._look_for_snapshots()
        logger.info(
            "%s: the state of %d keys is restored (%d records read again, %.1f s)",
            partition,
            found.table.count,
            found.replayed,
            asyncio.get_running_loop().time() - began,
            extra={"action": "state_restored", "count": found.table.count, "replayed": found.replayed},
        )

    async def _until_answered(self, restore: _Restore, committed: Committed) -> Restored:
        partition = restore.view.session.partition
        for attempt in itertools.count(1):
            restoring = restore.restoring = Restoring(partition, committed, self._topics, self._options)
            try:
                await self._topics.check_partitions([partition], _REQUEST)
                return await restoring.run(await self._increment(partition, committed))
            except (TimeoutError, ClientError) as error:
                if type(error) not in (TimeoutError, ClientError, BrokerUnreachable):
                    raise  # which waiting does not mend
                logger.warning(
                    "%s: its state is not restored yet (try %d): %s",
                    partition,
                    attempt,
                    str(error) or "no answer",
                    extra={"action": "state_retry"},
                )
            await asyncio.sleep(_PAUSE)
        raise AssertionError

    async def _increment(self, partition: TopicPartition, committed: Committed) -> Increment | None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + _LATE
        while True:
            found = (await self._topics.last_increments([partition], _REQUEST)).get(partition)
            if isinstance(found, ValueError):
                logger.warning(
                    "%s: the increment of its state in %s cannot be read: %s",
                    partition,
                    self._topics.names.increments,
                    found,
                    extra={"action": "increment_unreadable"},
                )
                found = None
            if found is not None and found.position == committed:
                return found
            if not self._is_transactional or loop.time() > ends:
                break
            await asyncio.sleep(_LOOK_AGAIN)
        if found is not None and found.position.offset < committed.offset:
            logger.warning(
                "%s: the last increment of its state is of offset %d, and %d is committed: the state is made of all "
                "records before that, also of those that were left out",
                partition,
                found.position.offset,
                committed.offset,
                extra={"action": "state_behind"},
            )
        return found

    def _tell_progress(self) -> None:
        if self._progress is None and not all(restore.is_ready for restore in self._restores.values()):
            self._progress = asyncio.get_running_loop().create_task(self._progress_lines(), name="aioparallel-restore")

    async def _progress_lines(self) -> None:
        while True:
            await asyncio.sleep(_TELL)
            parts = self._parts()
            if not parts:
                break
            logger.info(
                "restoring the state: %d partitions are ready, %d are not, the farthest of them at %.0f %%",
                len(self._restores) - len(parts),
                len(parts),
                100 * max(parts.values()),
                extra={"action": "state_restoring", "left": len(parts)},
            )
        self._progress = None

    def _parts(self) -> dict[TopicPartition, float]:
        return {partition: restore.part for partition, restore in self._restores.items() if not restore.is_ready}

    # -- saving -----------------------------------------------------------------------------------------

    def outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
        """See :class:`~aioparallel.group.companions.TransactionalCompanion`."""
        view = self._views.get(partition)
        if view is None or not view.is_restored:
            return ()
        value = encode_increment(view.increment(committed))
        key = encode_place(self._topics.group_id, partition)
        return (Outgoing(self._topics.names.increments, value, key, partition=partition.partition),)

    async def save(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """See :class:`~aioparallel.group.companions.Companion`.

        Of each partition one write at most is on its way: one without an answer is waited for by the next save.
        """
        ends = asyncio.get_running_loop().time() + timeout
        views = {partition: self._views.get(partition) for partition in positions}
        before = [self._writes[partition] for partition in positions if partition in self._writes]
        if before:
            await asyncio.wait(before, timeout=timeout)
        for partition, committed in positions.items():
            if partition in self._writes or self._views.get(partition) is not views[partition]:
                continue
            if outputs := self.outputs(partition, committed):
                self._writes[partition] = self._write(partition, outputs)
        writes = {p: write for p, write in self._writes.items() if p in positions and write not in before}
        if writes:
            left = max(0.0, ends - asyncio.get_running_loop().time())
            await asyncio.wait(writes.values(), timeout=left)
        unsaved: dict[TopicPartition, CommitFault] = {}
        for partition, view in views.items():
            write = writes.get(partition)
            if write is None or not write.done():
                unsaved[partition] = CommitFault.RETRIABLE
                self._not_saved(partition, "it does not answer")
            elif (failure := write.result()) is not None:
                unsaved[partition] = CommitFault.RETRIABLE if failure.passing else CommitFault.REFUSED
                self._not_saved(partition, str(failure))
            elif view is None or self._views.get(partition) is not view:
                unsaved[partition] = CommitFault.RETRIABLE  # released meanwhile
            else:
                self._unsaved.pop(partition, None)
        return unsaved

    def _write(self, partition: TopicPartition, outputs: Sequence[Outgoing]) -> _Write:
        written: _Write = asyncio.get_running_loop().create_future()

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            if self._writes.get(partition) is written:
                del self._writes[partition]
            if not written.done():
                written.set_result(result if isinstance(result, ProduceFailed) else None)

        self._producer.send(outputs, delivered)
        return written

    def _not_saved(self, partition: TopicPartition, reason: str) -> None:
        """Told once, until it is saved again; health says it as long."""
        if partition not in self._views:
            return
        if self._unsaved.get(partition) != reason:
            logger.warning(
                "%s: the increment of its state is not written to %s, so nothing is committed: %s",
                partition,
                self._topics.names.increments,
                reason,
                extra={"action": "state_unsaved"},
            )
        self._unsaved[partition] = reason

    # -- full snapshots ---------------------------------------------------------------------------------

    def _look_for_snapshots(self) -> None:
        if self._snapshots is None:
            loop = asyncio.get_running_loop()
            self._snapshots = loop.create_task(self._write_snapshots(), name="aioparallel-snapshots")

    async def _write_snapshots(self) -> None:
        """One after the other, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = next((view for view in self._views.values() if view.is_due()), None)
            if due is None or loop.time() < self._rests_until:
                await asyncio.sleep(_LOOK)
            else:
                await self._snapshot(due)

    async def _snapshot(self, view: StateView) -> None:
        partition, topic = view.session.partition, self._topics.names.snapshots
        since, loop = view.since, asyncio.get_running_loop()
        began, taken = loop.time(), view.take()
        at = int(time.time() * 1000)
        try:
            named = await write_snapshot(
                self._producer, topic, self._topics.group_id, partition, taken, self._policy, at
            )
        except (ProduceFailed, DumpFailed) as error:
            view.not_written(since)
            self._rests_until = loop.time() + _REST
            if self._views.get(partition) is not view:
                return
            self._unwritten[partition] = str(error)
            logger.warning(
                "%s: a full snapshot of its state is not written to %s: %s; it is tried again",
                partition,
                topic,
                error,
                extra={"action": "snapshot_failed"},
            )
            return
        except BaseException:
            view.not_written(since)
            raise
        view.written(named)
        self._written += 1
        self._unwritten.pop(partition, None)
        logger.info(
            "%s: a full snapshot of its state is written: %d keys in %d pieces, %.1f s",
            partition,
            named.keys,
            named.pieces,
            loop.time() - began,
            extra={"action": "snapshot_written", "count": named.keys},
        )

    # -- the end ----------------------------------------------------------------------------------------

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""
        self._forget(partition)
        self._views.pop(partition, None)

    def _forget(self, partition: TopicPartition) -> None:
        if (restore := self._restores.pop(partition, None)) is not None:
            restore.task.cancel()
        self._unsaved.pop(partition, None)
        self._unwritten.pop(partition, None)

    async def close(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""
        tasks = [restore.task for restore in self._restores.values()]
        tasks += [task for task in (self._snapshots, self._progress) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- showing ----------------------------------------------------------------------------------------

    def values(self, partition: TopicPartition) -> dict[bytes, Any] | None:
        """A copy of all values of a partition, by key; None where it is not here, or not restored."""
        view = self._views.get(partition)
        return dict(view.table.items()) if view is not None and view.is_restored else None

    def stats(self) -> StateStats:
        """See :class:`~aioparallel.group.companions.Companion`."""
        views = [view for view in self._views.values() if view.is_restored]
        return StateStats(
            keys=sum(view.table.count for view in views),
            restoring={str(partition): part for partition, part in self._parts().items()},
            restored=self._restored,
            replayed=self._replayed,
            snapshots=self._written,
            unapplied=sum(view.unapplied for view in views),
        )

    def problems(self) -> Sequence[Problem]:
        """See :class:`~aioparallel.group.companions.Companion`."""
        told = [
            (self._unsaved, f"is not saved in {self._topics.names.increments}, so nothing is committed"),
            (self._unwritten, f"has no new full snapshot in {self._topics.names.snapshots}"),
        ]
        found: list[Problem] = []
        for partitions, what in told:
            found += [
                Problem(ProblemKind.STATE_UNSAVED, f"{partition}: its state {what}: {reason}")
                for partition, reason in itertools.islice(partitions.items(), _TOLD)
            ]
            if len(partitions) > _TOLD:
                found.append(Problem(ProblemKind.STATE_UNSAVED, f"and {len(partitions) - _TOLD} more partitions"))
        return found


class _Restore:
    """One partition's, on its way."""

    def __init__(self, state: KeyedState, view: StateView, committed: Committed | None) -> None:
        self.view = view
        self.committed = committed
        self.restoring: Restoring | None = None
        self.task = asyncio.get_running_loop().create_task(state._restore(self), name="aioparallel-state")
        self.task.add_done_callback(_retrieve)

    @property
    def is_ready(self) -> bool:
        """Whether its state is there."""
        return self.view.is_restored and self.task.done()

    @property
    def part(self) -> float:
        """How much of what is to be read was read, 0 to 1."""
        return 0.0 if self.restoring is None else self.restoring.part


def _retrieve(task: asyncio.Task[None]) -> None:
    """Its error is raised by whoever asks next; where nobody does, nobody is told."""
    if not task.cancelled():
        task.exception()
