"""A consumer that starts and stops with an application, and reports its health at any time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable
from typing import Final, Generic, Literal, Self, cast

from aioparallel.config.handling import check_choice
from aioparallel.config.unknown_options import refuses_others
from aioparallel.consumer import ParallelConsumer
from aioparallel.handlers.stack import Handlers, HandlersOf, check_handlers
from aioparallel.observe.health import Health
from aioparallel.observe.stats import Stats
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.record import K_co, V_co
from aioparallel.web.restarts import RestartPolicy, ends_the_process
from aioparallel.web.supervisor import Supervisor, start_all, stop_all

__all__ = ["ConsumerService", "OnFailure"]

logger = logging.getLogger(__name__)

OnFailure = Literal["not_ready", "exit"]


@refuses_others
class ConsumerService(Generic[K_co, V_co]):
    """One consumer, kept running for the length of an ``async with`` block.

    ::

        orders = ConsumerService(make_consumer, handle)
        async with orders:
            print(orders.health().live)

    ``make_consumer``: a function that makes a new :class:`~aioparallel.ParallelConsumer`. A consumer runs once, so
    each start and each restart makes a new one.
    ``handler``: as for ``ParallelConsumer.run()``.
    ``name``: used in messages; each service of an application needs a different one.
    ``restart``: when a failed consumer is started again; None: never.
    ``on_failure``: what a final failure does. ``"not_ready"``: the service is neither ready nor live, and the
    application goes on. ``"exit"``: the application ends as it does at SIGTERM.

    Entering the block waits until the consumer is connected and runs, and raises the error if it cannot. With
    ``restart`` entering does not wait: a failed start is tried again in the background, and the service is not ready
    meanwhile. Leaving the block drains, commits and leaves the group; Ctrl-C ends the draining. The service may then
    be entered again.

    A service belongs to the event loop that it was entered on; :meth:`health`, :meth:`stats` and :meth:`stop` may be
    called in any thread. Raises ConfigurationError.
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
        if inspect.iscoroutinefunction(made):
            raise ConfigurationError(
                "make_consumer", made, "must be a plain function that makes a ParallelConsumer, and this one is async"
            )
        check_handlers(cast("Handlers", handler))
        given: object = name
        if not isinstance(given, str) or not given:
            raise ConfigurationError("name", name, "must be a text that is not empty")
        if restart is not None and not isinstance(restart, RestartPolicy):
            raise ConfigurationError("restart", restart, "must be a RestartPolicy, or None")
        check_choice("on_failure", on_failure, ("not_ready", "exit"))
        self.name: Final = name
        """The name in messages."""
        self._make_consumer = make_consumer
        self._handler = handler
        self._restart = restart
        self._on_failure = on_failure
        self.supervisor: Supervisor[K_co, V_co] | None = None
        """Made anew each time the service is entered."""
        self.ended_application = False
        """Whether a failure of this service has ended the application."""

    async def __aenter__(self) -> Self:
        """Start the consumer."""
        await start_all((self.new_supervisor,))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drain within ``drain_timeout``, commit, leave the group. A cancellation or Ctrl-C ends the draining; the
        rest is still done."""
        if self.supervisor is not None:
            await stop_all((self.supervisor,))

    def new_supervisor(self) -> Supervisor[K_co, V_co]:
        """Raises ConsumerStateError while the last one runs."""
        if self.supervisor is not None and not self.supervisor.has_ended:
            raise ConsumerStateError(f"the consumer {self.name} is running already: enter its service once at a time")
        self.ended_application = False
        self.supervisor = Supervisor(self.name, self._make_consumer, self._handler, self._restart, self._failed)
        return self.supervisor

    def stop(self, drain: bool = True) -> None:
        """Start no more handlers. Those in flight get ``drain_timeout`` seconds, or with ``drain=False`` are cancelled
        at once. Leaving the block waits for them. May be called at any time, repeatedly, from any thread."""
        if self.supervisor is not None:
            self.supervisor.stop(drain)

    def _failed(self) -> None:
        """Called at a final failure."""
        # sys.exit() in a handler is meant for the process.
        if self._on_failure != "exit" and not ends_the_process(self.failure):
            return
        self.ended_application = end_application()
        if self.ended_application:
            logger.warning(
                "The application ends because its consumer %s has failed",
                self.name,
                extra={"action": "application_ended", "service": self.name},
            )
        else:
            logger.error(
                "The consumer %s has failed, but the application cannot be ended: it has no handler for SIGTERM",
                self.name,
                extra={"action": "application_not_ended", "service": self.name},
            )

    @property
    def consumer(self) -> ParallelConsumer[K_co, V_co]:
        """The current or last consumer, for ``pause()``, ``commit_now()`` and the like. Each restart replaces it.
        Raises ConsumerStateError before the first was made."""
        if self.supervisor is None or self.supervisor.consumer is None:
            raise ConsumerStateError(f"the consumer {self.name} does not exist yet: enter its service first")
        return self.supervisor.consumer

    @property
    def failure(self) -> BaseException | None:
        """The final failure; None if there is none."""
        return None if self.supervisor is None else self.supervisor.failure

    @property
    def restarts(self) -> int:
        """Restarts since the service was entered, including one whose delay has not ended."""
        return 0 if self.supervisor is None else self.supervisor.restarts

    def health(self) -> Health:
        """Like :meth:`ParallelConsumer.health() <aioparallel.ParallelConsumer.health>`, at any time: also before the
        start, before a restart (live, not ready, with the problem ``restarting``) and after the end."""
        return Health(running=False, problems=()) if self.supervisor is None else self.supervisor.health()

    def stats(self) -> Stats:
        """Like :meth:`ParallelConsumer.stats() <aioparallel.ParallelConsumer.stats>`, of the current or last run.
        Raises ConsumerStateError before the first run."""
        if self.supervisor is None:
            raise ConsumerStateError(f"the consumer {self.name} has not run yet, so it has no statistics")
        return self.supervisor.stats()


def end_application() -> bool:
    """End the application by a signal that ends its server: SIGTERM, or SIGINT if nothing handles SIGTERM, as
    ``asyncio.run()`` handles Ctrl-C. Returns False and does nothing if neither has a handler: the signal would kill the
    process.

    Raised in a step of its own: an exception of the handler passes through the event loop.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        number = signal.SIGTERM
    elif signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
        number = signal.SIGINT
    else:
        return False
    asyncio.get_running_loop().call_soon(signal.raise_signal, number)
    return True
