"""One life of a consumer service: consumers made, opened, run, closed, and made anew, until it is stopped or fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from typing import Generic

from aioparallel.consumer import ParallelConsumer
from aioparallel.engine.waiting import unless
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.handlers import HandlersOf
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.records import K_co, V_co
from aioparallel.web.restarts import RestartPolicy, Restarts

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)


class _Stage(Enum):
    """Where a failure came from."""

    MAKING = "could not be made"
    STARTING = "could not be started"
    RUNNING = "has ended"


class Keeper(Generic[K_co, V_co]):
    """Written by its own task, :meth:`keep`; everybody may ask, and :meth:`stop` it."""

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
        self.begun = asyncio.Event()
        """Its start is over for whoever waits for it: what fails from now on fails behind everybody's back. Without
        restarts it runs; with them, which may wait long for a broker, there is something to be started."""
        self.failure: BaseException | None = None
        """What it has failed with for good."""
        self._trouble = ""
        """What it failed with, while it is to be started again."""
        self._stopping = asyncio.Event()
        self._seen: ParallelConsumer[K_co, V_co] | None = None
        self._run_began: float | None = None
        self._run_ended = 0.0

    # -- its task ---------------------------------------------------------------------------------------

    async def keep(self) -> None:
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
        except Exception as error:
            return _Stage.MAKING, error
        if not self._waits:
            self.begun.set()
        try:
            if await unless(self._stopping, consumer.__aenter__()) is None:
                return None
        except Exception as error:
            return _Stage.STARTING, error
        return await self._one_run(consumer)

    async def _one_run(self, consumer: ParallelConsumer[K_co, V_co]) -> tuple[_Stage, BaseException] | None:
        failed: BaseException | None = None
        loop = asyncio.get_running_loop()
        self._seen, self._run_began, self._trouble = consumer, loop.time(), ""
        # A step later: what is wrong with the handler is raised in this one, and belongs to the start.
        telling = loop.call_soon(self.begun.set)
        try:
            try:
                await consumer.run(self._handler)
            finally:
                telling.cancel()
                self._run_ended = loop.time()
                await consumer.__aexit__(None, None, None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # of a task, KeyboardInterrupt and SystemExit fall through the event loop
            failed = error
        return None if failed is None else (_Stage.RUNNING, failed)

    def _judged(self, stage: _Stage, error: BaseException) -> float | None:
        """Say what has happened, once; seconds until the next start, or None: there is none."""
        stays = stage is _Stage.MAKING or self._stopping.is_set()
        delay = None if stays else self._restarts.delay(error, self._ran())
        what = f"{stage.value} with {type(error).__name__}: {error}"
        if self.begun.is_set() and (stage is not _Stage.RUNNING or not isinstance(error, Exception)):
            logger.error(  # its run has said so itself
                "The consumer %s %s", self._name, what, extra={"action": "service_failed", "service": self._name}
            )
        if delay is None:
            self.failure = error
            if self.begun.is_set() and not self._stopping.is_set():
                self._on_failed()
            return None
        self._trouble = what
        logger.warning(
            "The consumer %s is started again in %.1f s (restart %d, %d in a row)",
            self._name,
            delay,
            self._restarts.total,
            self._restarts.in_a_row,
            extra={"action": "service_restart", "service": self._name},
        )
        return delay

    def _ran(self) -> float:
        return 0 if self._run_began is None else self._run_ended - self._run_began

    # -- from outside -----------------------------------------------------------------------------------

    def stop(self, drain: bool) -> None:
        """Let :meth:`keep` end: wherever it stands, nothing more is started."""
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
        if self.failure is not None:
            said = f"the consumer failed with {type(self.failure).__name__}: {self.failure}"
            return Health(running=False, problems=(Problem(ProblemKind.FAILED, said),))
        if self._trouble:
            said = f"the consumer {self._trouble}; it is started again (restart {self._restarts.total})"
            return Health(running=False, problems=(Problem(ProblemKind.RESTARTING, said),))
        if self._seen is None or self._seen is not self.consumer:
            return Health(running=False, problems=())
        return self._forgiving(self._seen.health())

    def _forgiving(self, health: Health) -> Health:
        """A run that has failed drains before it ends: this service is live meanwhile, if it is started again then."""
        ran = 0 if self._run_began is None else asyncio.get_running_loop().time() - self._run_began
        if health.live or self._stopping.is_set() or not self._restarts.are_left(ran):
            return health
        problems = tuple(
            Problem(ProblemKind.RESTARTING, one.message) if one.kind is ProblemKind.FAILED else one
            for one in health.problems
        )
        return Health(running=health.running, problems=problems, joined=health.joined)


def _check_consumer(made: object) -> None:
    if not isinstance(made, ParallelConsumer):
        raise ConfigurationError("make_consumer", made, "must return a ParallelConsumer")
