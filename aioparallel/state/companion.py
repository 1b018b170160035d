"""The companion of a consumer that keeps a state: restored before a partition's first record, saved with commits."""

from __future__ import annotations

import asyncio
import contextlib
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
from aioparallel.policies import Transactions
from aioparallel.records import Outgoing, Produced, TopicPartition
from aioparallel.state.increments import Increment, encode_increment, encode_place
from aioparallel.state.restoring import Restoring
from aioparallel.state.table import Table
from aioparallel.state.topics import StateTopics
from aioparallel.state.view import Restored, StateView
from aioparallel.state.writing import write_snapshot

__all__ = ["KeyedState"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Partitions that are restored beside each other."""
_PAUSE: Final = 1.0
"""Seconds until a restore without an answer is tried again."""
_LATE: Final = 15.0
"""Seconds after a transaction's timeout at which the brokers have ended it for certain, and what stands behind it is
visible."""
_LOOK_AGAIN: Final = 0.1
_TELL: Final = 5.0
"""Seconds between two lines about restores that go on."""
_REQUEST: Final = 10.0
_MADE_AT_ONCE: Final = 20
"""Increments that are made in one turn of the event loop."""
_LOOK: Final = 0.5
"""Seconds between two looks at which full snapshots are due."""
_FINISHING: Final = 10.0
"""Seconds for full snapshots that are due when the run ends."""
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
        policy = options.commits
        self._late = _LATE + (policy.transaction_timeout if isinstance(policy, Transactions) else 0.0)
        self._views: dict[TopicPartition, StateView] = {}
        self._restores: dict[TopicPartition, _Restore] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._writes: dict[TopicPartition, _Write] = {}  # increments without an answer yet
        self._unsaved: dict[TopicPartition, str] = {}  # and why
        self._unwritten: dict[TopicPartition, str] = {}  # full snapshots, and why
        self._rests: dict[TopicPartition, float] = {}  # until when no full snapshot is tried
        self._writing = asyncio.Lock()
        self._snapshots: asyncio.Task[None] | None = None
        self._progress: asyncio.Task[None] | None = None
        self._restored = self._replayed = self._written = 0

    # -- restoring --------------------------------------------------------------------------------------

    def beside(self, session: Session) -> StateView:
        """See :class:`~aioparallel.group.companions.Companion`."""
        self._forget(session.partition)
        view = self._views[session.partition] = StateView(
            self._policy, session, time.time, keeps_lanes=self._is_transactional
        )
        return view

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.companions.Companion`. Each is ready by itself."""
        asked: dict[TopicPartition, _Restore] = {}
        begun: list[_Restore] = []
        for partition, committed in found.items():
            if (view := self._views.get(partition)) is None:
                continue
            restore = self._restores.get(partition)
            if restore is None or restore.committed != committed:
                if restore is not None:
                    restore.task.cancel()
                restore = self._restores[partition] = _Restore(self, view, committed)
                begun.append(restore)
            asked[partition] = restore
        self._look_up(begun)
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
        increment = None if committed is None else await restore.increment
        for attempt in itertools.count(1):
            try:
                async with self._room:  # one attempt: who gets no answer holds up nobody
                    await self._topics.check_partitions([partition], _REQUEST)
                    if committed is None:
                        found = Restored(Table(), None, (), (), 0)
                    else:
                        restore.restoring = Restoring(partition, committed, self._topics, self._options)
                        found = await restore.restoring.run(increment)
            except (TimeoutError, ClientError) as error:
                restore.trouble = await _pass(error, str(partition), attempt)
            else:
                break
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

    # -- the last increments of several partitions, in one look -----------------------------------------

    def _look_up(self, restores: Sequence[_Restore]) -> None:
        if wanted := [restore for restore in restores if restore.committed is not None]:
            task = asyncio.get_running_loop().create_task(self._increments(wanted), name="aioparallel-increments")
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _increments(self, restores: Sequence[_Restore]) -> None:
        """Tell each what is found. Where increments are part of transactions, what was committed may not be seen yet,
        behind a transaction that is open."""
        loop = asyncio.get_running_loop()
        ends, pause = loop.time() + self._late, _LOOK_AGAIN
        for attempt in itertools.count(1):
            left = {one.view.session.partition: one for one in restores if not one.increment.done()}
            if not left:
                return
            wanted = {partition: one.committed for partition, one in left.items() if one.committed is not None}
            try:
                found = await self._topics.last_increments(wanted, _REQUEST)
            except Exception as error:
                try:
                    trouble = await _pass(error, f"{len(left)} partitions", attempt)
                except Exception as lasting:
                    for one in left.values():
                        one.fail(lasting)
                    return
                for one in left.values():
                    one.trouble = trouble
                continue
            is_last = not self._is_transactional or loop.time() > ends
            for partition, one in left.items():
                increment = found.get(partition)
                is_it = isinstance(increment, Increment) and increment.position == one.committed
                if is_it or is_last:
                    one.found(self._readable(partition, one, increment))
                else:
                    one.trouble = (
                        "the increment of its position is not visible: a transaction may be open, or somebody has "
                    )
                    one.trouble += f"moved the position; that is waited for {self._late:.0f} s"
            await asyncio.sleep(pause)
            pause = min(_PAUSE, 2 * pause)

    def _readable(
        self, partition: TopicPartition, restore: _Restore, found: Increment | ValueError | None
    ) -> Increment | None:
        if isinstance(found, ValueError):
            logger.warning(
                "%s: the increment of its state in %s cannot be read: %s",
                partition,
                self._topics.names.increments,
                found,
                extra={"action": "increment_unreadable"},
            )
            return None
        committed = restore.committed
        if found is not None and committed is not None and found.position.offset < committed.offset:
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
        key = encode_place(self._topics.group_id, partition, view.session.generation.id)
        return (Outgoing(self._topics.names.increments, value, key, partition=partition.partition),)

    async def save(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """See :class:`~aioparallel.group.companions.Companion`.

        Of each partition one write at most is on its way: one without an answer is waited for by the next save.
        """
        views = {partition: self._views.get(partition) for partition in positions}
        before = {partition: self._writes[partition] for partition in positions if partition in self._writes}
        writes: dict[TopicPartition, _Write] = {}
        ends = asyncio.get_running_loop().time() + timeout
        for count, (partition, committed) in enumerate(positions.items(), 1):
            if partition not in before and self._views.get(partition) is views[partition]:
                if outputs := self.outputs(partition, committed):
                    writes[partition] = self._writes[partition] = self._write(partition, outputs)
                if not count % _MADE_AT_ONCE:
                    await asyncio.sleep(0)
        # Who has waited since before holds up nobody.
        if writes:
            await asyncio.wait(writes.values(), timeout=max(0.0, ends - asyncio.get_running_loop().time()))
        elif before:
            await asyncio.wait(before.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        unsaved: dict[TopicPartition, CommitFault] = {}
        for partition, view in views.items():
            write = writes.get(partition)
            if view is None or self._views.get(partition) is not view:
                unsaved[partition] = CommitFault.RETRIABLE  # released meanwhile
            elif write is None or not write.done():
                unsaved[partition] = CommitFault.RETRIABLE
                if write is not None or partition in self._writes:
                    self._not_saved(partition, "it does not answer")
            elif (failure := write.result()) is not None:
                unsaved[partition] = CommitFault.RETRIABLE if failure.passing else CommitFault.REFUSED
                self._not_saved(partition, str(failure))
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
        while True:
            await asyncio.sleep(_LOOK)
            await self._write_due()

    async def _write_due(self) -> None:
        for view in [*self._views.values()]:
            partition = view.session.partition
            async with self._writing:
                rests = asyncio.get_running_loop().time() < self._rests.get(partition, 0.0)
                if self._views.get(partition) is view and not rests and view.is_due():
                    await self._snapshot(view)

    async def finish(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`. Who runs for a short time each day would never come to
        it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISHING):
                await self._write_due()

    async def _snapshot(self, view: StateView) -> None:
        partition, topic = view.session.partition, self._topics.names.snapshots
        since, loop = view.since, asyncio.get_running_loop()
        began, taken = loop.time(), view.take()
        at = int(time.time() * 1000)
        try:
            named = await write_snapshot(
                self._producer, topic, self._topics.group_id, partition, taken, self._policy, at
            )
        except Exception as error:  # whatever a client, or a key, has raised: the others go on
            view.not_written(since)
            self._rests[partition] = loop.time() + _REST
            if self._views.get(partition) is not view:
                return
            self._unwritten[partition] = str(error) or repr(error)
            logger.warning(
                "%s: a full snapshot of its state is not written to %s: %s; it is tried again",
                partition,
                topic,
                str(error) or repr(error),
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
        self._rests.pop(partition, None)

    async def close(self) -> None:
        """See :class:`~aioparallel.group.companions.Companion`."""
        tasks = [restore.task for restore in self._restores.values()]
        tasks += [*self._looking, *[task for task in (self._snapshots, self._progress) if task is not None]]
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
        waits = {
            partition: restore.trouble
            for partition, restore in self._restores.items()
            if restore.trouble and not restore.is_ready
        }
        for partition, trouble in itertools.islice(waits.items(), 1):
            more = f" (and {len(waits) - 1} more partitions)" if len(waits) > 1 else ""
            text = f"{partition}: its state is not restored yet{more}: {trouble}"
            found.append(Problem(ProblemKind.STATE_WAITS, text))
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
        self.trouble = ""
        self.increment: asyncio.Future[Increment | None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(state._restore(self), name="aioparallel-state")
        self.task.add_done_callback(_retrieve)

    def found(self, increment: Increment | None) -> None:
        """The last increment of it, or none."""
        if not self.increment.done():  # nobody waits any more
            self.increment.set_result(increment)

    def fail(self, error: Exception) -> None:
        """It cannot be told."""
        if not self.increment.done():
            self.increment.set_exception(error)

    @property
    def is_ready(self) -> bool:
        """Whether its state is there."""
        return self.view.is_restored and self.task.done()

    @property
    def part(self) -> float:
        """How much of what is to be read was read, 0 to 1."""
        return 0.0 if self.restoring is None else self.restoring.part


async def _pass(error: Exception, what: str, attempt: int) -> str:
    """Wait, where that may mend it, and say what it was; else raise it."""
    if type(error) not in (TimeoutError, ClientError, BrokerUnreachable):
        raise error
    told = str(error) or "no answer"
    logger.warning(
        "%s: the state is not restored yet (try %d): %s", what, attempt, told, extra={"action": "state_retry"}
    )
    await asyncio.sleep(_PAUSE)
    return told


def _retrieve(task: asyncio.Task[None]) -> None:
    """Its error is raised by whoever asks next; where nobody does, nobody is told."""
    if not task.cancelled():
        task.exception()
