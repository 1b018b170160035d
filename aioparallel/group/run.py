"""One process's work, put together: fetcher, workers, committer, assignment; from run to closed.

States of a run: running -> *stopping* (nothing new starts) -> settled (drained, committed, dropped). Whatever
ends the run first decides what :meth:`GroupRun.run` does: return after a stop, or raise.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any

from aioparallel.engine.handlers import Handler
from aioparallel.engine.health import Problem
from aioparallel.engine.outlets import Disposal, Outlet
from aioparallel.engine.processor import Processor
from aioparallel.engine.stats import BrokerOutputs, Stats
from aioparallel.errors import NotCommitted
from aioparallel.group.assignment import CANCEL_GRACE, Assignment
from aioparallel.group.client import Client
from aioparallel.group.committer import Committer, reasons
from aioparallel.group.ends import Ends
from aioparallel.group.fetcher import Fetcher
from aioparallel.group.holdings import Holdings
from aioparallel.group.intake import Intake
from aioparallel.group.snapshot import problems_of, stats_of
from aioparallel.group.stores import BrokerOffsets
from aioparallel.options import Options
from aioparallel.records import Record, TopicPartition

__all__ = ["GroupRun"]

logger = logging.getLogger(__name__)


class GroupRun:
    """Runs one handler over what one client is assigned. Made within a running event loop, used once.

    ``targets``: with ``until="end"``, the end offset of each partition at the start; else None.
    ``outlet``, ``disposal``: where what handlers return goes, and records whose patience has ended.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        options: Options,
        handler: Handler,
        targets: Mapping[TopicPartition, int] | None = None,
        outlet: Outlet | None = None,
        disposal: Disposal | None = None,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._targets = targets
        self._processor = Processor(
            handler,
            options,
            outlet=outlet,
            disposal=disposal,
            on_fatal=self._fail,
            on_idle=self._look_for_end,
        )
        store = BrokerOffsets(client)
        holdings = Holdings(self._processor.scheduler, store, targets)
        self._committer = Committer(
            store, options, self._processor.scheduler, holdings.sessions.values, self._processor.notify
        )
        self._assignment = Assignment(
            client,
            group_id,
            options,
            self._processor,
            holdings,
            store,
            self._committer,
            on_change=self._changed,
            on_fatal=self._fail,
        )
        self._ends = Ends(client, holdings, self._changed)
        intake = Intake(options, self._processor.scheduler)
        self._fetcher = Fetcher(client, self._assignment, self._processor, intake, self._look_for_end)
        self._tasks: list[asyncio.Task[None]] = []
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drain = True
        self._settled = False
        self._owing: Mapping[TopicPartition, str] = {}  # not committed when it was settled, and why

    # -- running ----------------------------------------------------------------------------------------

    async def run(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Join the group and run until :meth:`stop`, the end offsets, or a failure that is raised.

        After a stop everything is settled when this returns. After a failure, or when cancelled, nothing
        new starts; :meth:`close` settles what is left.
        """
        self._client.subscribe(topics, self._assignment)
        self._spawn(self._fetcher.run(), "fetcher")
        self._spawn(self._committer.run(), "committer")
        if self._targets is not None:
            self._spawn(self._ends.run(), "ends")
        try:
            await self._end
        finally:
            self._quiesce()
        await self.settle()
        if self._targets is not None and self._owing:
            raise NotCommitted(self._group_id, self._owing)

    def stop(self, drain: bool) -> None:
        """Let :meth:`run` settle and return; without ``drain`` the handlers in flight are cancelled."""
        self._drain = self._drain and drain
        self._quiesce()
        if not self._end.done():
            self._end.set_result(None)
        elif not drain:
            self._processor.cancel(list(self._assignment.sessions.values()))

    def pause(self) -> None:
        """Start nothing and fetch nothing until :meth:`resume`; what is in flight ends, commits go on."""
        self._processor.scheduler.pause()
        self._fetcher.replan()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if not self._end.done():
            self._processor.scheduler.resume()
            self._changed()

    async def commit_now(self) -> None:
        """Commit what is complete now. Raises NotCommitted when the broker did not take all of it within
        ``commit_timeout`` seconds."""
        self._processor.scheduler.keep_books()  # a handler may ask
        deadline = asyncio.get_running_loop().time() + self._options.commit_timeout
        owing = await self._committer.commit_until(list(self._assignment.sessions.values()), deadline)
        if owing:
            raise NotCommitted(self._group_id, reasons(owing))

    async def settle(self) -> None:
        """Drain (unless stopped without), commit and drop everything this process holds. Once."""
        if self._settled:
            return
        self._quiesce()
        drain_timeout = self._options.drain_timeout if self._drain else 0
        owing = await self._assignment.settle(list(self._assignment.sessions.values()), drain_timeout)
        self._owing = reasons(owing)
        self._settled = True

    async def close(self) -> None:
        """Settle, then end every coroutine of the engine."""
        try:
            await self.settle()
        finally:
            for task in self._tasks:
                task.cancel()
            await self._assignment.close()
            await self._processor.close(CANCEL_GRACE)
            if self._tasks:
                await asyncio.wait(self._tasks)
            if self._end.done() and not self._end.cancelled():
                self._end.exception()  # raised by run(), or nobody runs any more

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"aioparallel-{name}")
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._quiesce()
        if self._end.done():
            logger.error("after the end of the run: %r", error, extra={"action": "late_failure"})
        else:
            self._end.set_exception(error)

    def _quiesce(self) -> None:
        self._processor.scheduler.pause()
        for task in self._tasks[:1]:
            task.cancel()  # the fetcher; commits go on until the end

    # -- reacting ---------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._fetcher.replan()
        self._processor.notify()
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self._targets is None or self._end.done() or self._processor.scheduler.in_flight:
            return
        if self._processor.scheduler.unfinished or not self._assignment.settled_down():
            return
        if all(session.ledger.position >= session.target for session in self._assignment.sessions.values()):
            self.stop(drain=True)

    # -- showing ----------------------------------------------------------------------------------------

    def stats(self, outputs: Sequence[BrokerOutputs]) -> Stats:
        """A snapshot of everything; walks the lanes, so a few times a second at most. ``outputs``: the producer's."""
        self._processor.scheduler.keep_books()  # a handler may ask
        intake = "stopped" if self._end.done() else self._fetcher.state
        return stats_of(self._client, self._processor, self._assignment, self._committer, intake, tuple(outputs))

    def problems(self, undelivered: Mapping[Record[Any, Any], str]) -> tuple[Problem, ...]:
        """What is wrong. ``undelivered``: records that cannot be put away, and why."""
        return tuple(problems_of(self._processor, tuple(self._assignment.sessions.values()), undelivered))

    @property
    def running(self) -> bool:
        """Whether records are read and run."""
        return not self._end.done()
