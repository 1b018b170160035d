"""ParallelConsumer: the one object most users touch."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from aioparallel.clients import AiokafkaClient
from aioparallel.engine.client import Client
from aioparallel.engine.engine import Engine
from aioparallel.engine.stats import Stats
from aioparallel.engine.workers import Handler
from aioparallel.errors import (
    BrokerUnreachable,
    ClientError,
    ConfigurationError,
    ConsumerStateError,
    TopicNotFound,
)
from aioparallel.options import OptionFields, Options, checked_text, checked_topics
from aioparallel.records import Record, TopicPartition

__all__ = ["ParallelConsumer", "loop_factory"]

# Seconds for leaving the group and closing connections.
_LEAVE_TIMEOUT = 5.0
# Under run_sync(). Measured at 500 partitions: young collections up to 3.4 ms, older ones up to 7.4 ms.
_GC_THRESHOLDS = (1_000, 5, 1_000)


class ParallelConsumer:
    """Reads topics as a member of a group and runs an async handler on many records at once.

    ::

        consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="enrich")
        async with consumer:
            await consumer.run(handle)

    ``topics``: a name, several names, or a compiled pattern that whole names must match.
    ``bootstrap_servers``: ``"host:port"``, several separated by commas, or a list of them.
    ``group_id``: the consumer group that commits.
    ``client``: another Kafka client in place of aiokafka, e.g. the in-memory one of ``aioparallel.testing``;
    then ``bootstrap_servers`` and ``group_id`` only name things in messages.
    Other keywords are the fields of :class:`aioparallel.options.Options`, with their meanings and defaults.

    Everything is checked here; raises :class:`~aioparallel.errors.ConfigurationError`.
    One consumer runs once, on one event loop. It installs no signal handlers (only :meth:`run_sync` does).
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        group_id: str,
        client: Client | None = None,
        **options: Unpack[OptionFields],
    ) -> None:
        self._topics = checked_topics(topics)
        if not isinstance(bootstrap_servers, str) and isinstance(bootstrap_servers, Sequence):
            bootstrap_servers = ",".join(checked_text("bootstrap_servers", one) for one in bootstrap_servers)
        self._servers = checked_text("bootstrap_servers", bootstrap_servers)
        self._group_id = checked_text("group_id", group_id)
        self.options = Options.of(options)
        self._client = client or AiokafkaClient(
            self._servers,
            self._group_id,
            session_timeout=self.options.session_timeout,
            heartbeat_interval=self.options.heartbeat_interval,
            rebalance_timeout=self.options.rebalance_timeout,
            client_options=self.options.client_options,
        )
        self._state = "new"
        self._engine: Engine | None = None
        self._run_ended: asyncio.Future[None] | None = None
        self._stop_wanted: bool | None = None  # stop() before run(): whether to drain
        self._paused = False
        self._found: set[TopicPartition] = set()

    # -- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and look up the topics, within ``connect_timeout`` seconds; nothing is created or read.

        Raises BrokerUnreachable, NotAuthorized or TopicNotFound.
        """
        self._expect("new", "opened")
        self._state = "open"
        try:
            async with asyncio.timeout(self.options.connect_timeout):
                await self._client.start(self.options.connect_timeout)
                self._found = await self._client.partitions(self._topics, self.options.connect_timeout)
            if not isinstance(self._topics, re.Pattern):
                missing = set(self._topics) - {partition.topic for partition in self._found}
                if missing:
                    raise TopicNotFound(missing, self._servers)  # noqa: TRY301 - closed below like any failure
        except TimeoutError as error:
            await self._leave()
            raise BrokerUnreachable(self._servers, self.options.connect_timeout, "no answer") from error
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain within ``drain_timeout``, commit, leave the group."""
        self._state = "closing"
        try:
            if self._engine is not None:
                await self._close(self._engine)
        finally:
            await self._leave()

    async def _close(self, engine: Engine) -> None:
        engine.stop(drain=True)
        try:
            if self._run_ended is not None:
                await asyncio.wait([self._run_ended])
            await engine.settle()
        except asyncio.CancelledError:
            engine.stop(drain=False)  # whoever cancels the closing wants no more waiting
            raise
        finally:
            await engine.close()

    async def _leave(self) -> None:
        self._state = "closed"
        await self._client.stop(_LEAVE_TIMEOUT)

    def _expect(self, state: str, verb: str) -> None:
        if self._state != state:
            hint = "use it in `async with consumer:`" if self._state == "new" else "make a new one"
            raise ConsumerStateError(f"this consumer is {self._state} and cannot be {verb}; {hint}")

    # -- running ----------------------------------------------------------------------------------------

    async def run(self, handler: Handler | Mapping[str, Handler]) -> None:
        """Run ``handler`` on every record, or by topic: ``run({"orders": f, "refunds": g})``.

        A handler is an ``async def`` function of a :class:`~aioparallel.records.Record`; what it returns is
        ignored; when it raises, the record is tried again after ``retry_delay`` seconds, its lane waiting.

        Returns after :meth:`stop`, or at the end offsets with ``until="end"``, when everything is drained and
        committed. Raises what ended it otherwise. Cancelling it starts nothing more; leaving ``async with``
        then drains and commits.
        """
        self._expect("open", "run")
        handle = self._checked_handler(handler)
        self._state = "running"
        loop = asyncio.get_running_loop()
        self._run_ended = loop.create_future()
        try:
            targets = await self._targets()
            if self._stop_wanted is not None:
                return
            self._engine = Engine(self._client, self._group_id, self.options, handle, targets)
            if self._paused:
                self._engine.pause()
            await self._engine.run(self._topics)
        finally:
            self._run_ended.set_result(None)

    def run_sync(self, handler: Handler | Mapping[str, Handler]) -> None:
        """Open, run and close in an event loop of its own (uvloop where there is one): for scripts.

        SIGINT and SIGTERM stop it with a drain; a second one no longer waits for handlers.

        The process is the consumer's own, so its garbage collector is set up for it: what is loaded already is left
        out of collections (``gc.freeze``), and they are frequent and small (thresholds 1,000, 5, 1,000). Otherwise
        a full collection, about one a second, holds the event loop for tens of milliseconds.
        """
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            with _signals(loop, self._on_signal):
                async with self:
                    await self.run(handler)

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(main())

    def _on_signal(self) -> None:
        self.stop(drain=self._stop_wanted is None)

    async def _targets(self) -> Mapping[TopicPartition, int] | None:
        if self.options.until is None:
            return None
        try:
            return await self._client.end_offsets(self._found, self.options.connect_timeout)
        except TimeoutError as error:
            raise ClientError(
                f"the brokers at {self._servers} did not tell the end offsets within "
                f"{self.options.connect_timeout:g} s, which until='end' needs"
            ) from error

    def _checked_handler(self, handler: Handler | Mapping[str, Handler]) -> Handler:
        if not isinstance(handler, Mapping):
            _check_callable(handler, "handler")
            return handler
        for topic, function in handler.items():
            _check_callable(function, f"handler for topic {topic!r}")
        names = {partition.topic for partition in self._found}
        missing = sorted(names - set(handler))
        if missing:
            raise ConfigurationError("handler", sorted(handler), f"has none for topic {', '.join(missing)}")
        return _by_topic(dict(handler))

    # -- while it runs ----------------------------------------------------------------------------------

    def stop(self, drain: bool = True) -> None:
        """Let :meth:`run` end: nothing new starts; handlers in flight get ``drain_timeout`` seconds, or are
        cancelled at once without ``drain``; then a last commit. May be called at any time, more than once."""
        self._stop_wanted = drain and self._stop_wanted is not False
        if self._engine is not None:
            self._engine.stop(drain)

    def pause(self) -> None:
        """Start and fetch nothing until :meth:`resume`. The group membership stays, commits go on."""
        self._paused = True
        if self._engine is not None:
            self._engine.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._paused = False
        if self._engine is not None:
            self._engine.resume()

    async def commit_now(self) -> None:
        """Commit everything that is complete at this moment; returns when the broker has acknowledged it.

        Raises ConsumerStateError when it is not running, ClientError when it was not acknowledged within
        ``commit_timeout`` seconds (it is tried again by itself then).
        """
        if self._engine is None:
            raise ConsumerStateError("this consumer does not run, so it has nothing to commit")
        if not await self._engine.commit_now():
            raise ClientError(
                f"group {self._group_id!r}: no acknowledged commit within {self.options.commit_timeout:g} s; "
                "nothing is lost, the next commit tries again"
            )

    def stats(self) -> Stats:
        """A snapshot of counts, lag and partitions. Takes milliseconds with 100,000 records buffered."""
        if self._engine is None:
            raise ConsumerStateError("this consumer does not run yet, so it has no statistics")
        return self._engine.stats()


def _check_callable(handler: object, name: str) -> None:
    call = handler if inspect.isroutine(handler) else getattr(handler, "__call__", None)  # noqa: B004
    if not callable(handler):
        raise ConfigurationError(name, handler, "must be an async function of a record")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        raise ConfigurationError(name, handler, f"must take one argument, the record ({error})") from None
    except ValueError:
        pass  # a callable without a signature, e.g. one written in C
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigurationError(name, handler, "must be an `async def` function without `yield`")


def _by_topic(handlers: dict[str, Handler]) -> Callable[[Record], Awaitable[object]]:
    def handle(record: Record) -> Awaitable[object]:
        return handlers[record.topic](record)

    return handle


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes uvloop's event loop; None, for asyncio's own, on Windows, where uvloop does not exist."""
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    caught = [signal.SIGINT, signal.SIGTERM]
    try:
        for number in caught:
            loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError, ValueError):
        caught = []  # Windows, or not the main thread: Ctrl-C then raises KeyboardInterrupt as usual
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
