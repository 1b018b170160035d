"""A consumer as a part of an application: it starts and ends with it, and says how it is at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Literal, Self, cast

from aioparallel.consumer import ParallelConsumer
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.handlers import Handlers, HandlersOf, check_handlers
from aioparallel.handling import check_choice
from aioparallel.observe.health import Health
from aioparallel.observe.stats import Stats
from aioparallel.records import K_co, V_co
from aioparallel.web.keeper import Keeper
from aioparallel.web.lives import begin, end
from aioparallel.web.restarts import RestartPolicy, ends_the_process
from aioparallel.web.signals import end_application

__all__ = ["ConsumerService", "OnFailure"]

logger = logging.getLogger(__name__)

OnFailure = Literal["not_ready", "exit"]


class ConsumerService(Generic[K_co, V_co]):
    """One consumer, kept running for the length of an ``async with`` block.

    ::

        orders = ConsumerService(make_consumer, handle)
        async with orders:
            print(orders.health().live)

    ``make_consumer``: a function that makes a new :class:`~aioparallel.ParallelConsumer`. A consumer runs once, so
    each start, and each restart, takes a new one.
    ``handler``: what ``ParallelConsumer.run()`` takes.
    ``name``: for messages, and where there are several; each has another one.
    ``restart``: when it is started again after a failure; None: never.
    ``on_failure``: what follows when it has failed for good: ``"not_ready"``, it is neither ready nor live, and the
    application goes on; ``"exit"``: the application is ended as its server ends it at SIGTERM.

    Entering waits until it is connected and runs, and raises what keeps it from that. With ``restart`` it waits for
    nothing: what fails is tried again in the background, and it is not ready meanwhile. Leaving drains, commits and
    leaves the group; Ctrl-C meanwhile no longer waits for handlers. It may be entered again after that.

    It belongs to the event loop that it was entered on; :meth:`health` and :meth:`stats` may be asked in any thread.
    Raises ConfigurationError.
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
        self.keeper: Keeper[K_co, V_co] | None = None

    # -- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start it; see the class."""
        await begin((self,))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain within ``drain_timeout``, commit, leave the group. Cancelled meanwhile, or at Ctrl-C, it drains no
        longer, but the rest is done all the same."""
        await end((self,))

    def new_keeper(self) -> Keeper[K_co, V_co]:
        """Of a life that begins: for what enters several together. Raises ConsumerStateError while it runs."""
        if self.keeper is not None and not self.keeper.is_over:
            raise ConsumerStateError(f"the consumer {self.name} is running already: enter its service once at a time")
        self.ended_application = False
        self.keeper = Keeper(self.name, self._make_consumer, self._handler, self._restart, self._failed)
        return self.keeper

    def stop(self, drain: bool = True) -> None:
        """Let it end now: nothing more starts; handlers in flight get ``drain_timeout`` seconds, or are cancelled at
        once without ``drain``. Leaving the block then waits for that. May be called at any time, more than once."""
        if self.keeper is not None:
            self.keeper.stop(drain)

    def _failed(self) -> None:
        """It has failed for good, while the application goes on."""
        # sys.exit() in a handler means the process.
        if self._on_failure != "exit" and not ends_the_process(self.failure):
            return
        self.ended_application = end_application()
        if self.ended_application:
            logger.warning(
                "The application ends, for its consumer %s has failed",
                self.name,
                extra={"action": "application_ended", "service": self.name},
            )
        else:
            logger.error(
                "The consumer %s has failed, and nothing here can end the application: it has no handler for SIGTERM",
                self.name,
                extra={"action": "application_not_ended", "service": self.name},
            )

    # -- seen from outside ------------------------------------------------------------------------------

    ended_application = False
    """Whether it has asked for the application's end, for it had failed."""

    @property
    def consumer(self) -> ParallelConsumer[K_co, V_co]:
        """The one that runs, or ran last: for ``pause()``, ``commit_now()`` and the like. Another one after each
        restart. Raises ConsumerStateError before the first was made."""
        if self.keeper is None or self.keeper.consumer is None:
            raise ConsumerStateError(f"the consumer {self.name} was not made yet: enter its service first")
        return self.keeper.consumer

    @property
    def failure(self) -> BaseException | None:
        """What it has failed with for good; None: it has not."""
        return None if self.keeper is None else self.keeper.failure

    @property
    def restarts(self) -> int:
        """How often it was started again since it was entered, the start counted that is being waited for."""
        return 0 if self.keeper is None else self.keeper.restarts

    def health(self) -> Health:
        """Like :meth:`ParallelConsumer.health() <aioparallel.ParallelConsumer.health>`, at any time: before the start,
        between restarts (live, not ready, with the problem ``restarting``) and after the end."""
        return Health(running=False, problems=()) if self.keeper is None else self.keeper.health()

    def stats(self) -> Stats:
        """Like :meth:`ParallelConsumer.stats() <aioparallel.ParallelConsumer.stats>`, of the consumer that runs, or ran
        last. Raises ConsumerStateError before the first one did."""
        if self.keeper is None:
            raise ConsumerStateError(f"the consumer {self.name} does not run yet, so it has no statistics")
        return self.keeper.stats()
