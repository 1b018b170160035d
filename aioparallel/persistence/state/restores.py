"""Restores the state of several partitions: each in its own task, with one search for all their increments."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from aioparallel.config.options import Options
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.state.increments import Increment
from aioparallel.persistence.state.restoring import Restoring
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.topics import StateTopics
from aioparallel.persistence.state.view import Restored, StateView
from aioparallel.records.errors import BrokerUnreachable, ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["Restores"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Partitions that are restored concurrently."""
_STALLED_AFTER: Final = 2.0
"""Seconds without progress after which a restore no longer counts as one of these."""
_PAUSE: Final = 1.0
"""Seconds until a restore is tried again."""
_IDLE_TIMEOUT: Final = 0.5
_LONGEST_IDLE_TIMEOUT: Final = 20.0
"""Seconds that a search for increments waits for data. The first time-out is short, so that partitions without data do
not delay others. It doubles with each search, so that a slow machine finds more each time."""
_PROGRESS_INTERVAL: Final = 5.0
"""Seconds between two log lines about the progress."""
_REQUEST: Final = 10.0


class Restores:
    """The restores of one member. ``view_of(partition)`` returns the current view, or None if it was released."""

    def __init__(
        self, topics: StateTopics, options: Options, view_of: Callable[[TopicPartition], StateView | None]
    ) -> None:
        self._topics = topics
        self._options = options
        self._view_of = view_of
        self._restores: dict[TopicPartition, _Restore] = {}
        self._searches: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._progress: asyncio.Task[None] | None = None
        self.restored = 0
        """Partitions restored so far."""
        self.replayed = 0
        """Records that were replayed for them."""

    def release(self, partition: TopicPartition) -> None:
        """Cancel the restore of this partition."""
        if (restore := self._restores.pop(partition, None)) is not None:
            restore.task.cancel()

    async def close(self) -> None:
        """Cancel all restores."""
        tasks = [*self._searches, *[restore.task for restore in self._restores.values()]]
        if self._progress is not None:
            tasks.append(self._progress)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def troubles(self) -> Mapping[TopicPartition, str]:
        """Returns why restores wait, by partition."""
        waiting = {partition: one.trouble for partition, one in self._restores.items() if not one.is_ready}
        return {partition: trouble for partition, trouble in waiting.items() if trouble}

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Restore these partitions. Returns those that are ready when one of them ends, or after ``timeout`` seconds.

        Restores go on afterwards; the next call waits for them. Raises what a restore raised.
        """
        requested: dict[TopicPartition, _Restore] = {}
        started: list[_Restore] = []
        for partition, committed in found.items():
            if (view := self._view_of(partition)) is None:
                continue
            restore = self._restores.get(partition)
            if restore is None or restore.committed != committed:
                if restore is not None:
                    restore.task.cancel()
                restore = self._restores[partition] = _Restore(self, view, committed)
                started.append(restore)
            requested[partition] = restore
        self._look_up(started)
        self._tell_progress()
        left = [restore.task for restore in requested.values() if not restore.is_ready]
        if left:
            await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for restore in requested.values():
            if restore.task.done() and not restore.task.cancelled() and (error := restore.task.exception()):
                raise error
        return [partition for partition, restore in requested.items() if restore.is_ready]

    async def _restore(self, restore: _Restore) -> None:
        view, committed = restore.view, restore.committed
        partition = view.assignment.partition
        began = asyncio.get_running_loop().time()
        increment = None if committed is None else await restore.increment
        for attempt in itertools.count(1):
            try:
                async with self._slot(restore):
                    await self._topics.check_partitions([partition], _REQUEST)
                    if committed is None:
                        found = Restored(Table(), None, (), (), 0)
                    else:
                        restore.restoring = Restoring(partition, committed, self._topics, self._options)
                        found = await restore.restoring.run(increment)
                    if increment is None:
                        found = found._replace(incarnation=await self._new_incarnation(partition))
                    elif _is_older(view.assignment.generation, increment):
                        found = found._replace(next_incarnation=await self._new_incarnation(partition))
            except (TimeoutError, ClientError) as error:
                if not _may_pass(error):
                    raise
                restore.trouble = _log_retry(error, str(partition), attempt)
                await asyncio.sleep(_PAUSE)
            else:
                break
        if self._view_of(partition) is not view:
            return
        view.restore(found)
        self.restored += 1
        self.replayed += found.replayed
        logger.info(
            "%s: restored the state of %d keys (%d records replayed, %.1f s)",
            partition,
            found.table.count,
            found.replayed,
            asyncio.get_running_loop().time() - began,
            extra={"action": "state_restored", "count": found.table.count, "replayed": found.replayed},
        )

    async def _new_incarnation(self, partition: TopicPartition) -> int:
        return await self._topics.end(self._topics.place_of(partition), _REQUEST)

    @contextlib.asynccontextmanager
    async def _slot(self, restore: _Restore) -> AsyncIterator[None]:
        """Hold a slot for one attempt. A restore without progress releases it early, so that it delays no other."""
        await self._slots.acquire()
        call_later, steps = asyncio.get_running_loop().call_later, restore.steps

        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal timer, steps
            if restore.steps == steps:
                timer = None
                self._slots.release()
            else:
                timer, steps = call_later(_STALLED_AFTER, check), restore.steps

        timer = call_later(_STALLED_AFTER, check)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
                self._slots.release()

    # -- the last increments of several partitions, in one search ---------------------------------------

    def _look_up(self, restores: Sequence[_Restore]) -> None:
        if wanted := [restore for restore in restores if restore.committed is not None]:
            task = asyncio.get_running_loop().create_task(self._increments(wanted), name="aioparallel-increments")
            self._searches.add(task)
            task.add_done_callback(self._searches.discard)

    async def _increments(self, restores: Sequence[_Restore]) -> None:
        """Give each restore its increment, or the error of the search."""
        try:
            await self._look_for(restores)
        except Exception as error:
            for one in restores:
                if not one.increment.done():
                    one.increment.set_exception(error)

    async def _look_for(self, restores: Sequence[_Restore]) -> None:
        idle_timeout = _IDLE_TIMEOUT
        for attempt in itertools.count(1):
            left = {one.view.assignment.partition: one for one in restores if not one.increment.done()}
            if not left:
                return
            wanted = {partition: one.committed for partition, one in left.items() if one.committed is not None}
            try:
                found = await self._topics.last_increments(wanted, _REQUEST, idle_timeout)
            except (TimeoutError, ClientError) as error:
                if not _may_pass(error):
                    raise
                trouble = _log_retry(error, f"{len(left)} partitions", attempt)
                for one in left.values():
                    one.trouble = trouble
                await asyncio.sleep(_PAUSE)
                continue
            if not found:
                await asyncio.sleep(_PAUSE)
            for partition, one in left.items():
                if partition in found:
                    one.trouble, increment = "", self._readable(partition, one, found[partition])
                    if not one.increment.done():  # else the restore was cancelled
                        one.increment.set_result(increment)
                else:
                    one.trouble = (
                        f"its increments in {self._topics.names.increments} cannot be read to the end: a transaction "
                        "is open before the last ones, or their broker does not answer"
                    )
            idle_timeout = min(_LONGEST_IDLE_TIMEOUT, 2 * idle_timeout)

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
                "%s: the last increment of its state is of offset %d, and the committed offset is %d: the state is "
                "made of all records before that, also of those that were dead-lettered or skipped",
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
            await asyncio.sleep(_PROGRESS_INTERVAL)
            parts = self.parts()
            if not parts:
                break
            logger.info(
                "restoring the state: %d partitions are ready, %d are not; the most advanced of them is at %.0f %%",
                len(self._restores) - len(parts),
                len(parts),
                100 * max(parts.values()),
                extra={"action": "state_restoring", "left": len(parts)},
            )
        self._progress = None

    def parts(self) -> dict[TopicPartition, float]:
        """Returns the progress of restores that are not ready, 0 to 1."""
        return {partition: restore.part for partition, restore in self._restores.items() if not restore.is_ready}


class _Restore:
    """The restore of one partition."""

    def __init__(self, restores: Restores, view: StateView, committed: Committed | None) -> None:
        self.view = view
        self.committed = committed
        self.restoring: Restoring | None = None
        self.trouble = ""
        self.increment: asyncio.Future[Increment | None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(restores._restore(self), name="aioparallel-state")
        # The next call of restore() raises the error. Without such a call, asyncio would log it as never retrieved.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_ready(self) -> bool:
        """Whether the state is restored."""
        return self.view.is_restored and self.task.done()

    @property
    def steps(self) -> object:
        """A value that changes with each progress."""
        return None if self.restoring is None else self.restoring.steps

    @property
    def part(self) -> float:
        """The progress, 0 to 1."""
        return 0.0 if self.restoring is None else self.restoring.part


def _is_older(generation: Generation, increment: Increment) -> bool:
    """Whether the increment is of a later generation than this member's.

    Either the group was deleted and then given a position, so its generations start again, or this member is a former
    owner.
    """
    return generation.id < max(increment.generation, increment.last_generation)


def _may_pass(error: Exception) -> bool:
    """Whether a retry may succeed."""
    return type(error) in (TimeoutError, ClientError, BrokerUnreachable)


def _log_retry(error: Exception, what: str, attempt: int) -> str:
    """Log a failed attempt. Returns its reason."""
    reason = str(error) or "no answer"
    logger.warning(
        "%s: the state is not restored yet (try %d): %s", what, attempt, reason, extra={"action": "state_retry"}
    )
    return reason
