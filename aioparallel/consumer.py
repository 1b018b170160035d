"""ParallelConsumer: the one object most users touch."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from aioparallel.clients.defaults import checked_producer, client_of, plain_producer, producer_of
from aioparallel.config.callables import check_interface
from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.group_protocol import check_pattern, refuse_for_own_client
from aioparallel.config.option_docs import takes_options
from aioparallel.config.options import Options, PlainFields, checked_text, checked_topics
from aioparallel.config.policies import Transactions
from aioparallel.delivery.delivery import Delivery
from aioparallel.delivery.producer import Producer
from aioparallel.delivery.results import Result, ResultStream
from aioparallel.delivery.retry_topics import RetryTopics, origin_of, origin_topic
from aioparallel.delivery.topics_read import left_out, topics_read
from aioparallel.engine.outcomes.gates import name_woken
from aioparallel.engine.sinks import DeadLetterSink, OutputSink
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.event_loop.loop import collecting_quickly, stopping_signals
from aioparallel.event_loop.other_threads import ask_on, call_on
from aioparallel.event_loop.own_loop import own_runner
from aioparallel.event_loop.waiting import to_the_end, unless
from aioparallel.group.arrivals import arrival_of
from aioparallel.group.client import Client
from aioparallel.group.extensions import Extensions
from aioparallel.group.membership import GroupMembership, Membership, Run, RunParts
from aioparallel.group.pause_targets import PauseTargets
from aioparallel.group.pauses import Pauses
from aioparallel.group.run_state import Phase, RunState
from aioparallel.group.snapshot import stats_before
from aioparallel.handlers.binding import HandlerContext, bind_handlers
from aioparallel.handlers.blocking.main_guard import refuse_in_import_of_main
from aioparallel.handlers.resources import Resources
from aioparallel.handlers.stack import (
    Handlers,
    HandlersOf,
    Stack,
    check_handlers,
    check_middleware,
    handler_stack,
)
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.stats import Paused, Stats
from aioparallel.persistence.dedup.deduplication import Deduplication
from aioparallel.persistence.state.keyed_state import KeyedState
from aioparallel.persistence.transactions import TransactionalCommits
from aioparallel.records.errors import (
    BrokerUnreachable,
    ConfigurationError,
    ConsumerStateError,
    HandlerNotStopped,
    TopicNotFound,
)
from aioparallel.records.record import K_co, Record, TopicPartition, V_co
from aioparallel.records.skipped import Skipped
from aioparallel.records.user_errors import text_of

__all__ = ["ParallelConsumer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds for leaving the group and closing connections.
_LEAVE_TIMEOUT = 5.0
# Seconds that another thread waits for the event loop when it asks for health or statistics.
_ASK_TIMEOUT = 5.0


@takes_options(Options)
class ParallelConsumer(Generic[K_co, V_co]):
    """Reads topics as a member of a group and runs an async handler on many records at once.

    ::

        consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="enrich")
        async with consumer:
            await consumer.run(handle)

    ``topics``: a name, several names, or a compiled pattern that whole names must match.
    ``bootstrap_servers``: ``"host:port"``, several separated by commas, or a list of them.
    ``group_id``: the consumer group that commits.
    ``client``, ``producer``: other Kafka clients in place of aiokafka, e.g. the in-memory ones of
    ``aioparallel.testing``; then ``bootstrap_servers`` and ``group_id`` only name things in messages.

    All other keywords are the fields of :class:`aioparallel.Options`. ``help()`` lists them below.

    For type checkers the class is generic: key and value of the handler's record have the types that the deserializers
    return. Without a deserializer the type is ``bytes | None``. (A record without key or value has None there in any
    case.)

    The constructor checks everything; it raises :class:`~aioparallel.ConfigurationError`. A consumer runs once,
    on one event loop. Only :meth:`run_sync` installs signal handlers.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        group_id: str,
        client: Client | None = None,
        producer: Producer | None = None,
        key_deserializer: Callable[[bytes], K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | None = None,
        **options: Unpack[PlainFields],
    ) -> None:
        if not isinstance(bootstrap_servers, str) and isinstance(bootstrap_servers, Sequence):
            bootstrap_servers = ",".join(checked_text("bootstrap_servers", one) for one in bootstrap_servers)
        self._servers = checked_text("bootstrap_servers", bootstrap_servers)
        self._group_id = checked_text("group_id", group_id)
        self.options = Options.of(
            {**options, "key_deserializer": key_deserializer, "value_deserializer": value_deserializer}
        )
        check_middleware(self.options.middleware)
        if client is not None:
            check_interface(client, "client", Client)
            refuse_for_own_client(options)
        if producer is not None:
            check_interface(producer, "producer", Producer)
        pauses = Pauses(self.options.failures.retry_topics, origin_of)
        self._state = RunState(self.options.max_concurrency, pauses)
        self._engine: Run | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keyed_state = None if self.options.state is None else KeyedState(self.options.state)
        self._extensions = self._all_extensions()
        self._membership = self._member(client)
        self._producer = checked_producer(producer, self.options)
        if producer is None and not self._membership.has_own_client:
            self._producer = producer_of(self._servers, self.options, self._group_id)
        self._extensions.attach(self._context())
        named, own = checked_topics(topics), self._own_topics()
        self._topics = topics_read(named, own, self.options.failures.retry_topics)
        self._left_out = left_out(named, own)
        if isinstance(named, re.Pattern):
            check_pattern(self.options.protocol, self.options.group_remote_assignor, topics, self._left_out)
        self._pause_targets = PauseTargets(self._topics, self.options, self._logical_topics)
        sinks = self._extensions.only("output_sinks")
        self._delivery = Delivery(
            self._producer, self.options, self._group_id, *(sinks or (None, None)), fatal=self._fail
        )
        self._resources = Resources(self.options.resources)
        self._of_handlers = Resources({})
        """What handlers open for themselves: :class:`~aioparallel.handlers.binding.BindableHandler`."""
        self._results: ResultStream[Any] | None = None
        self._found: set[TopicPartition] = set()

    @property
    def _logical_topics(self) -> Mapping[str, Sequence[str]]:
        """Names that stand for several topics."""
        return {}

    def _all_extensions(self) -> Extensions:
        """The extensions that options stand for, then those of the user."""
        options, found = self.options, list[Extension]()
        if isinstance(options.commits, Transactions):
            found.append(TransactionalCommits(options.commits))
        elif options.commits is not None:
            found.append(options.commits)
        if options.failures.retry_topics:
            found.append(RetryTopics(options.failures.retry_topics, arrival_of))
        if options.deduplicate is not None:
            found.append(Deduplication(options.deduplicate))
        if self._keyed_state is not None:
            found.append(self._keyed_state)
        return Extensions((*found, *options.extensions))

    def _member(self, client: Client | None) -> Membership:
        found: Membership | None = self._extensions.only("membership", self._group_id, self._servers, self.options)
        if found is not None:
            return found
        member_of = partial(client_of, self._servers, self.options)
        made = client or self._extensions.only("client", self._group_id, member_of) or member_of(self._group_id)
        return GroupMembership(made, self._servers, self.options, has_own_client=client is not None)

    def _context(self) -> ConsumerContext:
        return ConsumerContext(
            group_id=self._group_id,
            servers=self._servers,
            options=self.options,
            group_client=self._membership.client,
            producer=self._producer,
            plain_producer=partial(plain_producer, self._producer, self.options),
            fail=self._fail,
            is_running=lambda: self._state.is_running,
            partitions=lambda: () if self._engine is None else self._engine.held,
            stats=self.stats,
            health=self.health,
            skip=self.skip,
        )

    def _own_topics(self) -> dict[str, str]:
        """Topics that the consumer writes by itself, and the option that names each."""
        dead_letter = self.options.failures.dead_letter
        own = {dead_letter: "FailurePolicy dead_letter"} if isinstance(dead_letter, str) else {}
        return own | self._extensions.topics()

    # -- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and look up the topics within ``connect_timeout`` seconds, then open the resources.

        Nothing is created or read.

        Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, TopicNotFound, and errors of opening a resource.
        """
        self._state.open()
        self._loop = asyncio.get_running_loop()
        try:
            await self._connect()
            await self._resources.open(self.options.connect_timeout)
        except BaseException:
            await to_the_end(self._leave())
            raise
        return self

    async def _connect(self) -> None:
        if self._left_out:
            logger.info(
                "The pattern of topics matches %s, which this consumer writes to: it does not read that",
                ", ".join(self._left_out),
                extra={"action": "own_topic_left_out"},
            )
        if (names := self.options.chooses_classic) and not self._membership.has_own_client:
            logger.info(
                "Group %s: the classic protocol is used: %s",
                self._group_id,
                f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} given",
                extra={"action": "classic_protocol", "group_id": self._group_id},
            )
        try:
            async with asyncio.timeout(self.options.connect_timeout):
                await self._membership.start(self.options.connect_timeout)
                self._found = await self._membership.partitions(self._topics, self.options.connect_timeout)
                await self._check_topics()
        except TimeoutError as error:
            checking = self._extensions.checking
            reason = str(error) or ("no answer" if checking is None else f"{type(checking).__name__}.check did not end")
            # What an extension has asked for may be something else than a broker.
            cause = None if checking is None else error
            raise BrokerUnreachable(self._servers, self.options.connect_timeout, reason) from cause

    async def _check_topics(self) -> None:
        """Check the topics that are read and written, and what extensions need. Raises TopicNotFound with all topics
        that are missing, not only the first."""
        missing: set[str] = set()
        uses: dict[str, str] = {}
        if not isinstance(self._topics, re.Pattern):
            missing |= set(self._topics) - {partition.topic for partition in self._found}
        try:
            await self._delivery.check(self._servers)
        except TopicNotFound as error:
            missing.update(error.topics)
            uses |= error.uses
        try:
            await self._extensions.check(self._found, self.options.connect_timeout)
        except TopicNotFound as error:
            missing.update(error.topics)
            uses |= error.uses  # the extension knows better, such as a queue that sets the failure policy
        except Exception:
            if not missing:  # else it may follow from the missing topics
                raise
        if missing:
            raise TopicNotFound(missing, self._servers, uses)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, commit, leave the group, close the resources.

        Each step has a deadline: ``drain_timeout`` for handlers, 0.5 s for those that are cancelled then,
        ``commit_timeout`` for the last commit, 4 s for unacknowledged outputs and dead letters, 5 s for leaving the
        group, 10 s for each resource. Each extension adds 60 s for ``finish`` (and one more commit), 60 s for ``stop``
        and 10 s for ``close``. The tracker of a KmqConsumer stops in such a ``stop``.

        A cancellation, a second signal or ``stop(drain=False)`` hurries it: it skips the drain and ``finish``, and
        ``stop`` of each extension has 5 s. It still does the rest. A cancellation is raised after that.
        """
        await to_the_end(self._close(), on_cancel=partial(self.stop, drain=False))

    async def _close(self) -> None:
        self.stop()
        if self._results is not None:
            self._results.close()  # nobody reads any more
        try:
            await self._state.returned.wait()
            if self._engine is not None:
                await self._engine.close()
        finally:
            try:
                await self._stop_extensions()
            finally:
                await self._leave()

    async def _stop_extensions(self) -> None:
        try:
            await self._extensions.stop(self._state.hurried)
        except Exception as error:
            if self._state.failure is None:
                raise
            self._fail(error)  # only logged: the caller gets the original failure

    async def _leave(self) -> None:
        self._state.close()
        async with AsyncExitStack() as stack:  # closed in reverse order, even if one raises
            stack.push_async_callback(self._resources.close)
            stack.push_async_callback(self._of_handlers.close)
            stack.push_async_callback(self._membership.stop, _LEAVE_TIMEOUT)
            # Before the group is left: outputs should not arrive behind those of the partition's next owner.
            stack.push_async_callback(self._delivery.close)
            stack.push_async_callback(self._extensions.close)

    # -- running ----------------------------------------------------------------------------------------

    async def run(self, handler: HandlersOf[K_co, V_co]) -> None:
        """Run ``handler`` on every record, or by topic: ``run({"orders": f, "refunds": g})``.

        A handler is an ``async def`` function of a :class:`~aioparallel.Record`. It returns None, or what is to
        be produced: an :class:`~aioparallel.Outgoing` or an iterable of them; or it yields them. The record is
        complete when the brokers have acknowledged all of them. If the handler raises, ``failures`` decides.

        A handler must be an ``async def`` function, or a partial of one, a method or ``__call__`` that is one, or a
        ``functools.wraps`` wrapper of one. Anything else raises ConfigurationError before a record is read. Functions
        that block or compute become handlers by :func:`~aioparallel.in_threads` or :func:`~aioparallel.in_processes`.

        Returns after :meth:`stop`, or at the end offsets with ``until="end"``, when all is drained and committed. With
        ``until="end"`` it raises NotCommitted if the last commit was not acknowledged. It raises any error that ends
        the run. When it is cancelled, no more records start; leaving ``async with`` then drains and commits.
        """
        sink = self._delivery.output_sink
        await self._run(handler, None if sink is None else self._extensions.through("output_sink", sink))

    async def _run(self, handler: Handlers, output_sink: OutputSink | None) -> None:
        try:
            refuse_in_import_of_main()
            self._state.expect_open()
            await self._run_engine(handler, output_sink)
        except Exception as error:
            # This may be a task that nobody awaits.
            logger.error(  # noqa: TRY400 - the caller has the traceback
                "The run of group %s has ended with %s: %s",
                self._group_id,
                type(error).__name__,
                text_of(error),
                extra={"action": "run_failed", "group_id": self._group_id},
            )
            raise

    async def _run_engine(self, handler: Handlers, output_sink: OutputSink | None) -> None:
        retry_topics = self.options.failures.retry_topics
        topics = {found.topic for found in self._found} - set(retry_topics)
        check_handlers(handler)
        handler = self._extensions.through("handlers", handler)
        handler, resources = bind_handlers(handler, self._handler_context())
        before = self._extensions.hooks("may_attempt")
        if resources:
            before.append(name_woken)
            self._of_handlers = Resources(resources)
        stack = handler_stack(
            handler,
            topics,
            self.options,
            before,
            self._extensions.hooks("before_attempt"),
            self._extensions.hooks("attempt"),
            origin_topic if retry_topics else None,
        )
        if self._results is not None:
            if stack.batchings is not None:
                raise ConfigurationError(
                    "handler", handler, "gives results of records; batch handlers work only with run()"
                )
            stack = Stack(self._results.boxed(stack.handler))
        self._state.begin()
        try:
            if resources:
                await unless(self._state.ending, self._of_handlers.open(self.options.connect_timeout))
            await unless(self._state.ending, self._membership.look_up(self._found))
            if self._state.ending.is_set():
                return
            self._engine = contextvars.copy_context().run(self._new_engine, stack, output_sink)
            await unless(self._state.ending, self._extensions.start())
            await self._engine.run(self._topics)
            # After a failure the last commit comes before that, in _close.
            await self._extensions.stop(self._state.hurried)
        except BaseException as error:
            self._state.ended_with(error)
            raise
        finally:
            self._state.leave_run()

    def _handler_context(self) -> HandlerContext:
        return HandlerContext(self._state.max_concurrency, self._group_id, self._extensions.around_requests)

    def _new_engine(self, stack: Stack, output_sink: OutputSink | None) -> Run:
        self._resources.reach()  # in a context of its own, which handlers copy
        self._of_handlers.reach()
        dead_letter_sink: DeadLetterSink | None = self._delivery.dead_letter_sink(
            partial(self._extensions.through, "letter_box")
        )
        dead_letter_sink = self._extensions.through("dead_letter_sink", dead_letter_sink)
        return self._membership.run(
            RunParts(self._group_id, self.options, stack, self._state, self._extensions, output_sink, dead_letter_sink)
        )

    async def results(self, handler: Callable[[Record[K_co, V_co]], Awaitable[T]]) -> AsyncGenerator[Result[T], None]:
        """Run ``handler`` and yield its results with their records as they come: ``async for record, value in ...``.

        A record is complete when the loop asks for the next result. While ``max_concurrency`` results are unread,
        finished handlers wait, so a slow reader slows the consumer down. Ends and raises like :meth:`run`. Records
        whose results were not read run again at the next start. If you leave the loop early, leave ``async with`` too.
        """
        self._state.expect_open()
        self._results = stream = ResultStream[T](self._state.max_concurrency)
        running = asyncio.get_running_loop().create_task(self._run_aside(cast("Handlers", handler), stream))
        running.add_done_callback(lambda _: stream.end())
        try:
            while (result := await stream.next()) is not None:
                yield result
            error = await running
            if error is not None:
                raise error
        finally:
            stream.close()
            self.stop()
            if not running.done():
                await asyncio.wait([running])

    async def _run_aside(self, handler: Handlers, output_sink: OutputSink) -> BaseException | None:
        # Returned, not raised: KeyboardInterrupt and SystemExit of a task fall through the whole event loop.
        try:
            await self._run(handler, output_sink)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return error
        return None

    def run_sync(self, handler: HandlersOf[K_co, V_co]) -> None:
        """Open, run and close in a new event loop (uvloop if it is installed): for scripts.

        SIGINT and SIGTERM stop it with a drain, also while it connects. After a second signal it no longer waits for
        handlers. The garbage collector is configured for a consumer meanwhile
        (:func:`aioparallel.event_loop.quick_collections`).

        If handlers ignore their cancellation, it stops waiting for them and ends the event loop although they have not
        ended. When everything else is done, :class:`~aioparallel.HandlerNotStopped` names them and their current lines.
        """
        check_handlers(handler)  # before anything is connected
        if asyncio._get_running_loop() is not None:
            raise ConsumerStateError(
                "run_sync starts an event loop, but this thread runs one already; write "
                "`async with consumer: await consumer.run(handler)`"
            )
        self._state.expect_new()

        async def main() -> None:
            with stopping_signals(asyncio.get_running_loop(), self._on_signal):
                # `stopped` and not `ending`: a consumer that cannot be opened ends as well, and its error is raised.
                if await unless(self._state.stopped, self.__aenter__()) is None:
                    return  # stopped before it was open
                try:
                    await self.run(handler)
                finally:
                    await self.__aexit__(None, None, None)

        try:
            with collecting_quickly(self.options.max_concurrency), own_runner() as runner:
                runner.run(main())
        except Exception as error:
            if self.left_behind:
                raise self._not_stopped() from error
            raise
        if self.left_behind:
            raise self._not_stopped()

    def _not_stopped(self) -> HandlerNotStopped:
        return HandlerNotStopped([(one.record, one.stack) for one in self.left_behind])

    def _on_signal(self) -> None:
        self.stop(drain=not self._state.ending.is_set())

    # -- while it runs ----------------------------------------------------------------------------------

    def stop(self, drain: bool = True) -> None:
        """End :meth:`run`: no record starts any more. Handlers in flight get ``drain_timeout`` seconds; without
        ``drain`` they are cancelled at once. Then follows a last commit. May be called at any time, repeatedly, from
        any thread. In another thread it returns at once, and the event loop acts on it in its next turn."""
        self._change(partial(self._state.stop, drain))

    def pause(self, *targets: str | TopicPartition) -> None:
        """Start and fetch nothing of these topics and partitions until :meth:`resume`; without arguments: nothing at
        all. Running handlers go on, and nothing is tried again meanwhile. The consumer stays in its group, all else
        goes on, and commits go on.

        A pause outlives rebalances: it also holds for partitions that are assigned later. A new consumer has none. The
        pause of a topic includes its records in retry topics. May be called at any time, repeatedly, from any thread,
        like :meth:`stop`. Raises ConfigurationError for a topic that is not read.
        """
        if targets:
            self._change(partial(self._state.pauses.pause, self._pause_targets.checked(targets)))
        else:
            self._change(self._state.pause)

    def resume(self, *targets: str | TopicPartition) -> None:
        """Go on after a :meth:`pause` with the same arguments. Each pause ends by itself: ``resume()`` does not end
        that of a topic, and the resume of a topic does not end that of one of its partitions; see :attr:`paused`. What
        is not paused stays as it is. May be called from any thread, like :meth:`stop`."""
        if targets:
            self._change(partial(self._state.pauses.resume, self._pause_targets.checked(targets)))
        else:
            self._change(self._state.resume)

    def pause_keys(self, topic: str, *keys: Hashable) -> None:
        """Start nothing of these keys of a topic until :meth:`resume_keys`. The other keys go on.

        A key is what orders records: the bytes of the record's key, or what ``order_by`` returns. Records of a paused
        key are still read, and wait in the buffer as behind a slow record: if they fill it, their partitions are not
        read on. Otherwise as :meth:`pause`. Raises ConfigurationError if the order has no keys.
        """
        self._change_keys(self._state.pauses.pause_keys, topic, keys)

    def resume_keys(self, topic: str, *keys: Hashable) -> None:
        """Go on after :meth:`pause_keys` with these keys. May be called from any thread, like :meth:`stop`."""
        self._change_keys(self._state.pauses.resume_keys, topic, keys)

    def _change_keys(
        self, change: Callable[[str, Sequence[Hashable]], None], topic: str, keys: Sequence[Hashable]
    ) -> None:
        topics, keys = self._pause_targets.topics(topic), self._pause_targets.keys(keys)

        def change_all() -> None:
            for one in topics:
                change(one, keys)

        self._change(change_all)

    @property
    def paused(self) -> Paused:
        """What is paused; it is false if nothing is. May be read in any thread. What another thread has just paused is
        in it after the event loop's next turn."""
        return self._state.paused

    @property
    def max_concurrency(self) -> int:
        """How many handlers may run at once. May be set at any time, from any thread: ``consumer.max_concurrency =
        50``. A higher number starts records at once. With a lower one, running handlers go on, and no more start until
        fewer run. ``options`` keeps the first number.

        The bound of parked records follows if ``max_parked`` is not set. ``max_buffered``, threads and processes of
        handlers, and the connections of an ``http_handler`` stay as they are. Raises ConfigurationError, as the option
        does.
        """
        return self._state.max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, most: int) -> None:
        replace(self.options, max_concurrency=most)  # checks it
        for check in self._extensions.hooks("check_max_concurrency"):
            check(most)
        self._change(partial(self._set_max_concurrency, most))

    def _set_max_concurrency(self, most: int) -> None:
        self._state.max_concurrency = most
        if self._results is not None:
            self._results.set_bound(most)

    def _change(self, change: Callable[[], None]) -> None:
        def changed() -> None:
            change()
            self._follow()

        call_on(self._loop, changed)

    def _fail(self, error: BaseException) -> None:
        if self._engine is not None:
            self._engine.fail(error)
        else:
            self._state.fail(error)

    def _follow(self) -> None:
        if self._engine is not None:
            self._engine.follow()

    async def commit_now(self) -> None:
        """Commit all records that are complete now, and wait for the acknowledgement.

        Raises ConsumerStateError if the consumer does not run. Raises NotCommitted (a ClientError), which names the
        partitions and reasons, if not all of it is acknowledged within ``commit_timeout`` seconds.
        """
        if self._engine is None:
            raise ConsumerStateError("this consumer does not run, so it has nothing to commit")
        await self._engine.commit_now()

    async def skip(
        self, partition: TopicPartition, offset: int, *more: int, dry_run: bool = False
    ) -> Sequence[Skipped]:
        """Complete these offsets of a partition that this consumer has, without their handlers, and commit that.

        All other records go on, also those of the same key. Records that wait are skipped at once. A handler that runs
        is cancelled, and its record is skipped however it ends; its key waits until it has ended. A batch that runs is
        not cancelled: the record is skipped if its batch fails. Outputs that are being sent are waited for. What runs
        has ``drain_timeout`` seconds to end. The result says of each offset, ascending, where its record was and
        whether it was skipped. ``dry_run``: only say that.

        Raises NotSkipped, with nothing changed, if one of them cannot be skipped: the partition is not held here, or
        being opened or given away; an offset is at or above the end of the log; more than 200,000 offsets before it are
        not read yet; the offset map could not hold it; its outputs are part of an open transaction; this is a queue.
        Raises it also if a record does not end in time, or if the partition is revoked meanwhile; what is skipped by
        then stays so. Raises NotCommitted if the commit was not acknowledged within ``commit_timeout`` seconds, and
        ConsumerStateError if the consumer does not run.
        """
        if self._engine is None:
            raise ConsumerStateError("this consumer does not run, so it has no partition in which to skip")
        return await self._engine.skip(partition, (offset, *more), dry_run=dry_run)

    def stats(self) -> Stats:
        """Return a snapshot of counts, lag and partitions. Takes milliseconds with 100,000 buffered records. May be
        called from any thread.

        Until the run begins, nothing is counted and no partition is assigned. Raises ConsumerStateError if the consumer
        was never opened. Raises TimeoutError in another thread if the event loop does not answer within five seconds.
        """
        return replace(ask_on(self._loop, self._stats, _ASK_TIMEOUT), cut_letters=self._delivery.cut.count)

    def _stats(self) -> Stats:
        if self._engine is not None:
            return self._engine.stats(self._delivery.outputs)
        if self._state.phase is Phase.NEW:
            raise ConsumerStateError("this consumer is new, so it has no statistics; use it in `async with consumer:`")
        intake = "stopped" if self._state.ending.is_set() else "nothing assigned"
        return self._extensions.through("stats", stats_before(self._membership.contact(), intake, self._state))

    def states(self, partition: TopicPartition) -> dict[bytes, Any]:
        """Return a copy of the states of all keys of a partition, as they are after the records completed so far. The
        dict's keys are the bytes of the record keys. After a run that has committed everything, such as one with
        ``until="end"``, they are those of its end. For inspection and tests: with many keys it takes a while. May be
        called from any thread.

        Raises ConsumerStateError if the consumer has not run, has no ``state``, or does not have this partition (yet).
        """
        state = self._keyed_state
        if state is None:
            raise ConsumerStateError("this consumer has no state=State(...), so it keeps no states")
        if self._engine is None:
            raise ConsumerStateError("this consumer has not run yet, so it has no states")
        found = ask_on(self._loop, lambda: state.values(TopicPartition(*partition)), _ASK_TIMEOUT)
        if found is None:
            raise ConsumerStateError(f"{TopicPartition(*partition)} is not held here, or its state is not restored yet")
        return found

    def health(self) -> Health:
        """Return whether the consumer runs, is ready and live, and its problems: brokers that do not answer, a producer
        that is refused, handlers that ignore their cancellation or block the event loop, dead letters that cannot be
        written, partitions with too many parked records, offset maps that do not fit. May be called at any time, from
        any thread."""
        try:
            return ask_on(self._loop, self._health, _ASK_TIMEOUT)
        except TimeoutError:
            text = f"the event loop has not answered another thread for {_ASK_TIMEOUT:g} s: something blocks it"
            problems = (Problem(ProblemKind.LOOP_HELD, text),)
            return Health(running=self._state.is_running, problems=problems, paused=self.paused)

    def _health(self) -> Health:
        if self._engine is None:
            return Health(running=False, problems=self._ended_badly(), paused=self.paused)
        problems = (*self._delivery.problems, *self._engine.problems(self._delivery.undelivered))
        return Health(
            running=self._state.is_running,
            problems=(*self._ended_badly(), *problems),
            joined=self._engine.has_joined,
            paused=self.paused,
        )

    def _ended_badly(self) -> tuple[Problem, ...]:
        failure = self._state.failure
        if not isinstance(failure, Exception):
            return ()
        return (Problem(ProblemKind.FAILED, f"the run ended with {type(failure).__name__}: {text_of(failure)}"),)

    @property
    def left_behind(self) -> Sequence[LeftBehind]:
        """After ``async with``: handlers that still run although they were cancelled twice."""
        return () if self._engine is None else self._engine.left_behind

    @property
    def resources(self) -> Mapping[str, object]:
        """The opened resources by name."""
        return self._resources.opened
