"""Runs the consumer of one service in a task: makes, starts, runs and closes it, and restarts it after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic

from aioparallel.consumer import ParallelConsumer
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.event_loop.other_threads import call_on
from aioparallel.event_loop.process_signals import ENDING, beside_handlers
from aioparallel.event_loop.waiting import to_the_end, unless
from aioparallel.handlers.stack import HandlersOf
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.records.errors import ConfigurationError, ConsumerStateError, WorkCancelled
from aioparallel.records.record import K_co, V_co
from aioparallel.records.user_errors import text_of
from aioparallel.web.restarts import RestartPolicy, Restarts, can_pass

__all__ = ["Supervisor", "start_all", "stop_all"]

logger = logging.getLogger(__name__)


class _Stage(StrEnum):
    """What failed."""

    MAKING = "could not be made"
    STARTING = "could not be started"
    RUNNING = "has ended"
    CLOSING = "could not be closed"


class Supervisor(Generic[K_co, V_co]):
    """Only its own task changes its state; any task or thread may read it, or call :meth:`stop`."""

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
        self._start_waits_for_run = restart is None
        self._restarts = Restarts(restart)
        self._on_failed = on_failed
        self.consumer: ParallelConsumer[K_co, V_co] | None = None
        """The one made last."""
        self._started = asyncio.Event()
        """Set when :meth:`start` need not wait any longer: without restarts once the consumer runs; with them once one
        was made, as a broker may be away for long. A failure before that is raised by ``start``, a later one logged."""
        self.failure: BaseException | None = None
        """The final failure, after which nothing is restarted."""
        self._last_failure = ""
        """The text of the failure that the coming restart follows."""
        self._can_pass = True
        """Whether the failure of the current run allows a restart; True while it has not failed."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._last_run: ParallelConsumer[K_co, V_co] | None = None
        self._run_began: float | None = None
        self._run_ended = 0.0
        self._left: list[LeftBehind] = []

    async def start(self, signalled: asyncio.Event) -> None:
        """Start, and wait until it has started or ``signalled`` is set. Raises the failure of the start."""
        self._task = task = self._loop.create_task(self._supervise(), name=f"aioparallel-service-{self._name}")
        waits = [self._loop.create_task(event.wait()) for event in (self._started, signalled)]
        try:
            await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.failure is not None and not self._started.is_set():
            raise self.failure
        self._started.set()  # after a signal: later failures are logged

    async def wait_ended(self) -> None:
        """Wait until its task has ended."""
        if self._task is not None and not self._loop.is_closed():
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()  # None: failures are kept in self.failure

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more. Its event loop may have closed before its task ended."""
        return self._task is None or self._task.done() or self._loop.is_closed()

    async def _supervise(self) -> None:
        try:
            await self._run_until_final()
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                self.failure = ConsumerStateError("its task was cancelled; leave the service's block instead")
                self._log_failure(_Stage.RUNNING, self.failure)
            raise

    async def _run_until_final(self) -> None:
        """Returns when it is stopped, after a final failure, or when the consumer ends without an error."""
        while not self._stopping.is_set():
            failed = await self._one_consumer()
            if failed is None:
                return
            delay = self._after_failure(*failed)
            if delay is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()

    async def _one_consumer(self) -> tuple[_Stage, BaseException] | None:
        """Make, start, run and close one consumer. Returns its failure."""
        self._run_began = None
        try:
            self.consumer = consumer = self._make_consumer()
            _check_consumer(consumer)
        except BaseException as error:  # KeyboardInterrupt or SystemExit raised from a task would end the event loop
            return _Stage.MAKING, error
        if not self._start_waits_for_run:
            self._started.set()
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
        self._last_run, self._run_began = consumer, self._loop.time()
        self._last_failure, self._can_pass = "", True
        # One step of the loop later: run() raises errors about the handler in its first step, and start() reports them.
        started = self._loop.call_soon(self._started.set)
        try:
            await consumer.run(self._handler)
        except BaseException as error:
            failed = _Stage.RUNNING, _as_failure(error, "its run")
            self._can_pass = can_pass(failed[1])
        finally:
            started.cancel()
            self._run_ended = self._loop.time()
            try:
                await consumer.__aexit__(None, None, None)
            except BaseException as error:
                closing = _as_failure(error, "its end")
                if failed is None:
                    failed = _Stage.CLOSING, closing
                else:
                    self._log_failure(_Stage.CLOSING, closing)
            self._left += consumer.left_behind
        return failed

    def _after_failure(self, stage: _Stage, error: BaseException) -> float | None:
        """Log a failure once. Returns the seconds until the restart; None if there is none."""
        # A consumer that could not be closed was stopped, or had ended.
        is_final = stage in (_Stage.MAKING, _Stage.CLOSING) or self._stopping.is_set()
        delay = None if is_final else self._restarts.delay(error, self._seconds_run())
        if self._started.is_set() and (stage is not _Stage.RUNNING or not isinstance(error, Exception)):
            self._log_failure(stage, error)
        elif stage is _Stage.RUNNING:  # the run has logged the error itself, without the traceback
            logger.info(
                "Traceback of the failure of consumer %s",
                self._name,
                exc_info=error,
                extra={"action": "service_traceback", "service": self._name},
            )
        if delay is None:
            self.failure = error
            if self._started.is_set() and not self._stopping.is_set():
                self._on_failed()
            return None
        self._last_failure = f"{stage} with {type(error).__name__}: {text_of(error)}"
        logger.warning(
            "The consumer %s is started again in %.1f s (restart %d, %d in a row)",
            self._name,
            delay,
            self._restarts.total,
            self._restarts.in_a_row,
            extra={"action": "service_restart", "service": self._name},
        )
        return delay

    def _log_failure(self, stage: _Stage, error: BaseException) -> None:
        logger.error(
            "The consumer %s %s with %s: %s",
            self._name,
            stage,
            type(error).__name__,
            text_of(error),
            extra={"action": "service_failed", "service": self._name},
        )

    def _seconds_run(self) -> float:
        return 0 if self._run_began is None else self._run_ended - self._run_began

    def stop(self, drain: bool) -> None:
        """Stop in any state: nothing more is started."""
        call_on(self._loop, partial(self._stop, drain))

    def _stop(self, drain: bool) -> None:
        self._stopping.set()
        if self.consumer is not None:
            self.consumer.stop(drain)

    @property
    def restarts(self) -> int:
        """Restarts so far, including the coming one."""
        return self._restarts.total

    def stats(self) -> Stats:
        """Stats of the current or last run. Raises ConsumerStateError before the first."""
        if self._last_run is None:
            raise ConsumerStateError(f"the consumer {self._name} has not run yet, so it has no statistics")
        return self._last_run.stats()

    def health(self) -> Health:
        """Adds the handlers that closed consumers left running, each once: the last consumer may report its own."""
        health = self._health()
        own = () if self._last_run is None else [one.task for one in self._last_run.left_behind]
        reports_own = any(one.kind is ProblemKind.HANDLER_STUCK for one in health.problems)
        left = [one for one in self._left if not one.task.done() and not (reports_own and one.task in own)]
        problems = [Problem(ProblemKind.HANDLER_STUCK, _still_runs(one)) for one in left]
        return replace(health, problems=(*health.problems, *problems))

    def _health(self) -> Health:
        if self.failure is not None:
            text = f"the consumer failed with {type(self.failure).__name__}: {text_of(self.failure)}"
            return Health(running=False, problems=(Problem(ProblemKind.FAILED, text),))
        if self._last_failure and not self._stopping.is_set():
            text = f"the consumer {self._last_failure}; it is started again (restart {self._restarts.total})"
            return Health(running=False, problems=(Problem(ProblemKind.RESTARTING, text),))
        if self._last_run is None or self._last_run is not self.consumer:
            return Health(running=False, problems=())
        return self._live_if_restarting(self._last_run.health())

    def _live_if_restarting(self, health: Health) -> Health:
        """A failed run drains before it ends. If a restart will follow, the service stays live meanwhile."""
        ran = 0 if self._run_began is None else self._loop.time() - self._run_began
        if health.live or self._stopping.is_set() or not (self._can_pass and self._restarts.are_left(ran)):
            return health
        problems = tuple(
            Problem(ProblemKind.RESTARTING, one.message) if one.kind is ProblemKind.FAILED else one
            for one in health.problems
        )
        return replace(health, problems=problems)


async def start_all(make_supervisors: Iterable[Callable[[], Supervisor[Any, Any]]]) -> None:
    """Make and start them in order. If one cannot start, stops those before it and raises its failure.

    Once the server gets a signal, waits for no start and begins none: uvicorn notes the signal, but acts on it only
    when the application's start-up is over.
    """
    started: list[Supervisor[Any, Any]] = []
    signalled = asyncio.Event()
    try:
        with beside_handlers(ENDING, signalled.set):
            for make in make_supervisors:
                if signalled.is_set():
                    return
                supervisor = make()
                started.append(supervisor)
                await supervisor.start(signalled)
    except BaseException:
        await stop_all(started)
        raise


async def stop_all(supervisors: Collection[Supervisor[Any, Any]]) -> None:
    """Stop them at once; each drains within its ``drain_timeout``. A cancellation or Ctrl-C ends the draining, and the
    rest of the stop is still done."""
    stop_now = partial(_stop, supervisors, drain=False)
    with beside_handlers((signal.SIGINT,), stop_now):
        _stop(supervisors, drain=True)
        await to_the_end(_wait_ended(supervisors), on_cancel=stop_now)


def _stop(supervisors: Collection[Supervisor[Any, Any]], *, drain: bool) -> None:
    for supervisor in supervisors:
        supervisor.stop(drain)


async def _wait_ended(supervisors: Collection[Supervisor[Any, Any]]) -> None:
    for supervisor in supervisors:
        await supervisor.wait_ended()


def _still_runs(left: LeftBehind) -> str:
    return (
        f"{left.record.place}: the handler still runs though it was cancelled and its consumer is closed; nothing "
        "waits for it any more"
    )


def _as_failure(error: BaseException, what: str) -> BaseException:
    """A CancelledError that did not come from cancelling this task becomes WorkCancelled. Raises one that did."""
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
        if inspect.iscoroutine(made):
            made.close()  # nothing awaits it
        raise ConfigurationError("make_consumer", made, "must return a ParallelConsumer")
