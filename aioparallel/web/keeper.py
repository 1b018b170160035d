"""One life of a consumer service: consumers made, opened, run, closed, and made anew, until it is stopped or fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Generic

from aioparallel.consumer import ParallelConsumer
from aioparallel.engine.waiting import unless
from aioparallel.errors import ConfigurationError, ConsumerStateError, WorkCancelled
from aioparallel.handlers import HandlersOf
from aioparallel.left_behind import LeftBehind
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.records import K_co, V_co
from aioparallel.user_errors import text_of
from aioparallel.web.restarts import RestartPolicy, Restarts, can_pass

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)


class _Stage(Enum):
    """Where a failure came from."""

    MAKING = "could not be made"
    STARTING = "could not be started"
    RUNNING = "has ended"
    CLOSING = "could not be closed"


class Keeper(Generic[K_co, V_co]):
    """Written by its own task, from :meth:`start` to :meth:`over`; everybody may ask, and :meth:`stop` it."""

    def __init__(
        self,
        name: str,
        make_consumer: Callable[[], ParallelConsumer[K_co, V_co]],
        handler: HandlersOf[K_co, V_co],
        restart: RestartPolicy | None,
        on_failed: Callable[[], None],
    ) -> None:
        self._name = name
        self._make_consumer = make_consumer
        self._handler = handler
        self._waits = restart is None
        self._restarts = Restarts(restart)
        self._on_failed = on_failed
        self.consumer: ParallelConsumer[K_co, V_co] | None = None
        """The last one made."""
        self._begun = asyncio.Event()
        """Its start is over for whoever waits for it: what fails from now on fails behind everybody's back. Without
        restarts it runs; with them, which may wait long for a broker, there is something to be started."""
        self.failure: BaseException | None = None
        """What it has failed with for good."""
        self._trouble = ""
        """What it failed with, while it is to be started again."""
        self._passes = True
        """Whether what the run has failed with may go well another time, as far as it has failed."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._seen: ParallelConsumer[K_co, V_co] | None = None
        self._run_began: float | None = None
        self._run_ended = 0.0
        self._left: list[LeftBehind] = []

    # -- its life ---------------------------------------------------------------------------------------

    async def start(self, signalled: asyncio.Event) -> None:
        """Begin, and wait until it has begun, or is ``signalled``. Raises what keeps it from that."""
        self._task = task = self._loop.create_task(self._keep(), name=f"aioparallel-service-{self._name}")
        waits = [self._loop.create_task(event.wait()) for event in (self._begun, signalled)]
        try:
            await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.failure is not None and not self._begun.is_set():
            raise self.failure
        self._begun.set()  # nobody waits for it any more

    async def over(self) -> None:
        """When its task has ended."""
        if self._task is not None and not self._loop.is_closed():
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()  # nothing: what fails is kept

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more; its event loop may have ended before it."""
        return self._task is None or self._task.done() or self._loop.is_closed()

    async def _keep(self) -> None:
        try:
            await self._keep_running()
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                self.failure = ConsumerStateError("its task was cancelled; leave its service in its place")
                self._say("has ended", self.failure)
            raise

    async def _keep_running(self) -> None:
        """Until it is stopped, has failed for good, or its consumer has ended by itself."""
        while not self._stopping.is_set():
            failed = await self._one_consumer()
            if failed is None:
                return
            delay = self._judged(*failed)
            if delay is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()

    async def _one_consumer(self) -> tuple[_Stage, BaseException] | None:
        """One, from its making to its closing; what it failed with."""
        self._run_began = None
        try:
            self.consumer = consumer = self._make_consumer()
            _check_consumer(consumer)
        except BaseException as error:  # of a task, KeyboardInterrupt and SystemExit fall through the event loop
            return _Stage.MAKING, error
        if not self._waits:
            self._begun.set()
        try:
            if await unless(self._stopping, consumer.__aenter__()) is None:
                return None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return _Stage.STARTING, error
        return await self._one_run(consumer)

    async def _one_run(self, consumer: ParallelConsumer[K_co, V_co]) -> tuple[_Stage, BaseException] | None:
        failed: tuple[_Stage, BaseException] | None = None
        self._seen, self._run_began, self._trouble, self._passes = consumer, self._loop.time(), "", True
        # A step later: what is wrong with the handler is raised in this one, and belongs to the start.
        telling = self._loop.call_soon(self._begun.set)
        try:
            await consumer.run(self._handler)
        except BaseException as error:
            failed = _Stage.RUNNING, _as_failure(error, "its run")
            self._passes = can_pass(failed[1])
        finally:
            telling.cancel()
            self._run_ended = self._loop.time()
            try:
                await consumer.__aexit__(None, None, None)
            except BaseException as error:
                closing = _as_failure(error, "its end")
                if failed is None:
                    failed = _Stage.CLOSING, closing
                else:
                    self._say(_Stage.CLOSING.value, closing)
            self._left += consumer.left_behind
        return failed

    def _judged(self, stage: _Stage, error: BaseException) -> float | None:
        """Say what has happened, once; seconds until the next start, or None: there is none."""
        # One that could not be closed had been stopped, or has come to its end.
        stays = stage in (_Stage.MAKING, _Stage.CLOSING) or self._stopping.is_set()
        delay = None if stays else self._restarts.delay(error, self._ran())
        if self._begun.is_set() and (stage is not _Stage.RUNNING or not isinstance(error, Exception)):
            self._say(stage.value, error)
        elif stage is _Stage.RUNNING:  # its run has said so itself, and leaves the traceback to who awaits it
            logger.info(
                "Where the consumer %s has failed",
                self._name,
                exc_info=error,
                extra={"action": "service_traceback", "service": self._name},
            )
        if delay is None:
            self.failure = error
            if self._begun.is_set() and not self._stopping.is_set():
                self._on_failed()
            return None
        self._trouble = f"{stage.value} with {type(error).__name__}: {text_of(error)}"
        logger.warning(
            "The consumer %s is started again in %.1f s (restart %d, %d in a row)",
            self._name,
            delay,
            self._restarts.total,
            self._restarts.in_a_row,
            extra={"action": "service_restart", "service": self._name},
        )
        return delay

    def _say(self, what: str, error: BaseException) -> None:
        logger.error(
            "The consumer %s %s with %s: %s",
            self._name,
            what,
            type(error).__name__,
            text_of(error),
            extra={"action": "service_failed", "service": self._name},
        )

    def _ran(self) -> float:
        return 0 if self._run_began is None else self._run_ended - self._run_began

    # -- from outside -----------------------------------------------------------------------------------

    def stop(self, drain: bool) -> None:
        """Let it end: wherever it stands, nothing more is started."""
        self._stopping.set()
        if self.consumer is not None:
            self.consumer.stop(drain)

    @property
    def restarts(self) -> int:
        """How often a consumer was made anew, or is about to be."""
        return self._restarts.total

    def stats(self) -> Stats:
        """Of the run, or of the last one. Raises ConsumerStateError before the first."""
        if self._seen is None:
            raise ConsumerStateError(f"the consumer {self._name} does not run yet, so it has no statistics")
        return self._seen.stats()

    def health(self) -> Health:
        """At any time."""
        health = self._health()
        # Of the last consumer its own health tells, as long as it is asked.
        own = () if self._seen is None else [one.task for one in self._seen.left_behind]
        told = any(one.kind is ProblemKind.HANDLER_STUCK for one in health.problems)
        left = [one for one in self._left if not one.task.done() and not (told and one.task in own)]
        if not left:
            return health
        problems = [Problem(ProblemKind.HANDLER_STUCK, _going_on(one)) for one in left]
        return replace(health, problems=(*health.problems, *problems))

    def _health(self) -> Health:
        if self.failure is not None:
            said = f"the consumer failed with {type(self.failure).__name__}: {text_of(self.failure)}"
            return Health(running=False, problems=(Problem(ProblemKind.FAILED, said),))
        if self._trouble and not self._stopping.is_set():
            said = f"the consumer {self._trouble}; it is started again (restart {self._restarts.total})"
            return Health(running=False, problems=(Problem(ProblemKind.RESTARTING, said),))
        if self._seen is None or self._seen is not self.consumer:
            return Health(running=False, problems=())
        return self._forgiving(self._seen.health())

    def _forgiving(self, health: Health) -> Health:
        """A run that has failed drains before it ends: this service is live meanwhile, if it is started again then."""
        ran = 0 if self._run_began is None else self._loop.time() - self._run_began
        if health.live or self._stopping.is_set() or not (self._passes and self._restarts.are_left(ran)):
            return health
        problems = tuple(
            Problem(ProblemKind.RESTARTING, one.message) if one.kind is ProblemKind.FAILED else one
            for one in health.problems
        )
        return Health(running=health.running, problems=problems, joined=health.joined)


def _going_on(left: LeftBehind) -> str:
    return (
        f"{left.record.place}: the handler goes on though it was cancelled and its consumer is closed; nothing waits "
        "for it any more"
    )


def _as_failure(error: BaseException, what: str) -> BaseException:
    """What has failed. Raises it where it is the cancellation of this task."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise error
    failure = WorkCancelled(what)
    failure.__cause__ = error
    return failure


def _check_consumer(made: object) -> None:
    if not isinstance(made, ParallelConsumer):
        raise ConfigurationError("make_consumer", made, "must return a ParallelConsumer")
