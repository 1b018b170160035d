"""A consumer as a part of an application: it starts and ends with it, and says how it is at any time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Generic, Literal, Self, cast

from aioparallel.consumer import ParallelConsumer
from aioparallel.engine.waiting import to_the_end
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.handlers import Handlers, HandlersOf, check_handlers
from aioparallel.handling import check_choice
from aioparallel.observe.health import Health
from aioparallel.observe.stats import Stats
from aioparallel.records import K_co, V_co
from aioparallel.web.keeper import Keeper
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.signals import end_application, told_of

__all__ = ["ConsumerService", "OnFailure"]

logger = logging.getLogger(__name__)

OnFailure = Literal["not_ready", "exit"]
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class ConsumerService(Generic[K_co, V_co]):
    """One consumer, kept running for the length of an ``async with`` block.

    ::

        orders = ConsumerService(make_consumer, handle)
        async with orders:
            print(orders.health().live)

    ``make_consumer``: a function that makes a new :class:`~aioparallel.ParallelConsumer`. A consumer runs once, so
    each start, and each restart, takes a new one.
    ``handler``: what :meth:`ParallelConsumer.run <aioparallel.ParallelConsumer.run>` takes.
    ``name``: for messages, and where there are several; each has another one.
    ``restart``: when it is started again after a failure; None: never.
    ``on_failure``: what follows when it has failed for good: ``"not_ready"``, it is neither ready nor live, and the
    application goes on; ``"exit"``: the application is ended as its server ends it at SIGTERM.

    Entering waits until it is connected and runs, and raises what keeps it from that. With ``restart`` it waits for
    nothing: what fails is tried again in the background, and it is not ready meanwhile. Leaving drains, commits and
    leaves the group; Ctrl-C meanwhile no longer waits for handlers. It may be entered again after that.

    It belongs to the event loop that it was entered on. Raises ConfigurationError.
    """

    def __init__(
        self,
        make_consumer: Callable[[], ParallelConsumer[K_co, V_co]],
        handler: HandlersOf[K_co, V_co],
        *,
        name: str = "consumer",
        restart: RestartPolicy | None = None,
        on_failure: OnFailure = "not_ready",
    ) -> None:
        made: object = make_consumer
        if isinstance(made, ParallelConsumer) or not callable(made):
            raise ConfigurationError(
                "make_consumer", made, "must be a function that makes a new ParallelConsumer: a consumer runs once"
            )
        check_handlers(cast("Handlers", handler))
        given: object = name
        if not isinstance(given, str) or not given:
            raise ConfigurationError("name", name, "must be a text that is not empty")
        if restart is not None and not isinstance(restart, RestartPolicy):
            raise ConfigurationError("restart", restart, "must be a RestartPolicy, or None")
        check_choice("on_failure", on_failure, ("not_ready", "exit"))
        self.name: Final = name
        """See above."""
        self._make_consumer = make_consumer
        self._handler = handler
        self._restart = restart
        self._on_failure = on_failure
        self._keeper: Keeper[K_co, V_co] | None = None
        self._task: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start it; see the class."""
        if self._task is not None:
            raise ConsumerStateError(f"the consumer {self.name} is running already: enter its service once at a time")
        self.ended_application = False
        self._keeper = keeper = Keeper(self.name, self._make_consumer, self._handler, self._restart, self._failed)
        self._task = asyncio.create_task(keeper.keep(), name=f"aioparallel-service-{self.name}")
        try:
            await self._started(keeper, self._task)
        except BaseException:
            await self._end(drain=True)
            raise
        return self

    async def _started(self, keeper: Keeper[K_co, V_co], task: asyncio.Task[None]) -> None:
        """Wait until it has begun. At the server's signal no longer: the server then asks for the end, which would wait
        for the start otherwise."""
        signalled = asyncio.Event()
        waits = [asyncio.create_task(event.wait()) for event in (keeper.begun, signalled)]
        try:
            with told_of(_ENDING, signalled.set):
                await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if keeper.failure is not None and not keeper.begun.is_set():
            raise keeper.failure
        keeper.begun.set()  # nobody waits for it any more

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain within ``drain_timeout``, commit, leave the group. Cancelled meanwhile, or at Ctrl-C, it drains no
        longer, but the rest is done all the same."""
        with told_of((signal.SIGINT,), partial(self.stop, drain=False)):
            await self._end(drain=True)

    async def _end(self, *, drain: bool) -> None:
        try:
            self.stop(drain)
            await to_the_end(self._over(), on_cancel=partial(self.stop, drain=False))
        finally:
            self._task = None

    async def _over(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()  # nothing: what fails is kept

    def stop(self, drain: bool = True) -> None:
        """Let it end now: nothing more starts; handlers in flight get ``drain_timeout`` seconds, or are cancelled at
        once without ``drain``. Leaving the block then waits for that. May be called at any time, more than once."""
        if self._keeper is not None:
            self._keeper.stop(drain)

    def _failed(self) -> None:
        """It has failed for good, while the application goes on."""
        # sys.exit() in a handler means the process.
        if self._on_failure == "exit" or not isinstance(self.failure, Exception):
            self.ended_application = True
            logger.warning(
                "The application ends, for its consumer %s has failed",
                self.name,
                extra={"action": "application_ended", "service": self.name},
            )
            end_application()

    # -- seen from outside ------------------------------------------------------------------------------

    ended_application = False
    """Whether it has asked for the application's end, for it had failed."""

    @property
    def consumer(self) -> ParallelConsumer[K_co, V_co]:
        """The one that runs, or ran last: for ``pause()``, ``commit_now()`` and the like. Another one after each
        restart. Raises ConsumerStateError before the first was made."""
        if self._keeper is None or self._keeper.consumer is None:
            raise ConsumerStateError(f"the consumer {self.name} was not made yet: enter its service first")
        return self._keeper.consumer

    @property
    def failure(self) -> BaseException | None:
        """What it has failed with for good; None: it has not."""
        return None if self._keeper is None else self._keeper.failure

    @property
    def restarts(self) -> int:
        """How often it was started again since it was entered, the start counted that is being waited for."""
        return 0 if self._keeper is None else self._keeper.restarts

    def health(self) -> Health:
        """Like :meth:`ParallelConsumer.health() <aioparallel.ParallelConsumer.health>`, at any time: before the start,
        between restarts (live, not ready, with the problem ``restarting``) and after the end."""
        return Health(running=False, problems=()) if self._keeper is None else self._keeper.health()

    def stats(self) -> Stats:
        """Of the consumer that runs, or ran last. Raises ConsumerStateError before the first one did."""
        if self._keeper is None:
            raise ConsumerStateError(f"the consumer {self.name} does not run yet, so it has no statistics")
        return self._keeper.stats()
