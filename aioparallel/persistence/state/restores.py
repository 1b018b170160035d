"""Partitions whose state is being restored: each by itself, their increments looked up together."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
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
"""Partitions that are restored beside each other."""
_MOMENT: Final = 2.0
"""Seconds without a step after which another one may begin."""
_PAUSE: Final = 1.0
"""Seconds until a restore without an answer is tried again."""
_IDLE_TIMEOUT: Final = 0.5
_LONGEST_IDLE_TIMEOUT: Final = 20.0
"""Seconds that a look for increments waits for those that it cannot see: short at first, that they hold up no others;
then twice as long each time, so that each look sees more than the one before on a machine however busy."""
_TELL: Final = 5.0
"""Seconds between two lines about restores that go on."""
_REQUEST: Final = 10.0


class Restores:
    """Of one member. ``view_of(partition)``: whose state it is to be now."""

    def __init__(
        self, topics: StateTopics, options: Options, view_of: Callable[[TopicPartition], StateView | None]
    ) -> None:
        self._topics = topics
        self._options = options
        self._view_of = view_of
        self._restores: dict[TopicPartition, _Restore] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._progress: asyncio.Task[None] | None = None
        self.restored = 0
        """Partitions, so far."""
        self.replayed = 0
        """Records that were read again for that."""

    def release(self, partition: TopicPartition) -> None:
        """Nobody waits for it any more."""
        if (restore := self._restores.pop(partition, None)) is not None:
            restore.task.cancel()

    async def close(self) -> None:
        """Nobody waits for anything any more."""
        tasks = [*self._looking, *[restore.task for restore in self._restores.values()]]
        if self._progress is not None:
            tasks.append(self._progress)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def troubles(self) -> Mapping[TopicPartition, str]:
        """What those wait for that do not get on."""
        waiting = {partition: one.trouble for partition, one in self._restores.items() if not one.is_ready}
        return {partition: trouble for partition, trouble in waiting.items() if trouble}

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Restore these partitions. Returns those that are ready within ``timeout`` seconds."""
        asked: dict[TopicPartition, _Restore] = {}
        begun: list[_Restore] = []
        for partition, committed in found.items():
            if (view := self._view_of(partition)) is None:
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
                async with _Place(self._room, restore):
                    await self._topics.check_partitions([partition], _REQUEST)
                    if committed is None:
                        found = Restored(Table(), None, (), (), 0)
                    else:
                        restore.restoring = Restoring(partition, committed, self._topics, self._options)
                        found = await restore.restoring.run(increment)
                    if increment is None or _is_older(view.session.generation, increment):
                        end = await self._topics.increments_end(partition, _REQUEST)
                        found = found._replace(life=end) if increment is None else found._replace(next_life=end)
            except (TimeoutError, ClientError) as error:
                if not _may_pass(error):
                    raise
                restore.trouble = _told(error, str(partition), attempt)
                await asyncio.sleep(_PAUSE)
            else:
                break
        if self._view_of(partition) is not view:
            return
        view.restore(found)
        self.restored += 1
        self.replayed += found.replayed
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
        """Tell each what is found, or why nothing can be."""
        try:
            await self._look_for(restores)
        except Exception as error:
            for one in restores:
                one.fail(error)

    async def _look_for(self, restores: Sequence[_Restore]) -> None:
        idle_timeout = _IDLE_TIMEOUT
        for attempt in itertools.count(1):
            left = {one.view.session.partition: one for one in restores if not one.increment.done()}
            if not left:
                return
            wanted = {partition: one.committed for partition, one in left.items() if one.committed is not None}
            try:
                found = await self._topics.last_increments(wanted, _REQUEST, idle_timeout)
            except (TimeoutError, ClientError) as error:
                if not _may_pass(error):
                    raise
                trouble = _told(error, f"{len(left)} partitions", attempt)
                for one in left.values():
                    one.trouble = trouble
                await asyncio.sleep(_PAUSE)
                continue
            if not found:
                await asyncio.sleep(_PAUSE)
            for partition, one in left.items():
                if partition in found:
                    one.found(self._readable(partition, one, found[partition]))
                else:
                    one.trouble = (
                        f"its increments in {self._topics.names.increments} cannot all be seen: a transaction is open "
                        "before the last ones, or their broker does not answer"
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
            parts = self.parts()
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

    def parts(self) -> dict[TopicPartition, float]:
        """Those that are not ready, and how much of what is to be read was, 0 to 1."""
        return {partition: restore.part for partition, restore in self._restores.items() if not restore.is_ready}


class _Restore:
    """One partition's, on its way."""

    def __init__(self, restores: Restores, view: StateView, committed: Committed | None) -> None:
        self.view = view
        self.committed = committed
        self.restoring: Restoring | None = None
        self.trouble = ""
        self.increment: asyncio.Future[Increment | None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(restores._restore(self), name="aioparallel-state")
        self.task.add_done_callback(_retrieve)

    def found(self, increment: Increment | None) -> None:
        """The last increment of it, or none."""
        self.trouble = ""
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
    def steps(self) -> object:
        """Another one whenever something has come."""
        return None if self.restoring is None else self.restoring.steps

    @property
    def part(self) -> float:
        """How much of what is to be read was read, 0 to 1."""
        return 0.0 if self.restoring is None else self.restoring.part


class _Place:
    """One of the places for what is restored beside each other, for one attempt, while that gets on: who waits for an
    answer holds up nobody. An async context manager."""

    def __init__(self, room: asyncio.Semaphore, restore: _Restore) -> None:
        self._room = room
        self._restore = restore
        self._steps: object = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._room.acquire()
        self._wait()

    def _wait(self) -> None:
        self._steps = self._restore.steps
        self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._look)

    def _look(self) -> None:
        if self._restore.steps == self._steps:
            self._leave()
        else:
            self._wait()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._room.release()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()


def _is_older(generation: Generation, increment: Increment) -> bool:
    """The group was deleted, and then given a position: it counts its generations anew. Or this is a former owner."""
    return generation.id < max(increment.generation, increment.last_generation)


def _may_pass(error: Exception) -> bool:
    """Whether waiting may mend it."""
    return type(error) in (TimeoutError, ClientError, BrokerUnreachable)


def _told(error: Exception, what: str, attempt: int) -> str:
    """Log that it is tried again, and say why."""
    told = str(error) or "no answer"
    logger.warning(
        "%s: the state is not restored yet (try %d): %s", what, attempt, told, extra={"action": "state_retry"}
    )
    return told


def _retrieve(task: asyncio.Task[None]) -> None:
    """Its error is raised by whoever asks next; where nobody does, nobody is told."""
    if not task.cancelled():
        task.exception()
