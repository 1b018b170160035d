"""Everything that is added to a consumer is an :class:`Extension`.

The stages of a consumer, and the hooks that are called::

    the consumer is made                   membership, client, attach, topics
    it is entered (async with)             check
    the run begins                         handlers, start
        │  the group is joined             work (in the background, until the run ends)
        │
        ├─ partitions are assigned         assigned ─▶ a PartitionState for each
        │    their offsets are read        restore, until each partition is ready
        ├─ records are fetched             PartitionState.select: which of them run
        │    an attempt begins             may_attempt, deserialisers, before_attempt, attempt
        │    it ends                       attempts_ended; attempt_failed
        │    outputs are sent              output_sink, letter_box
        │    the record is complete        PartitionState.gave_up, completed; records_ended
        ├─ offsets are committed           before_commit, then commit_outputs with the offsets
        │    the broker acknowledges       PartitionState.acknowledged; commit_ended
        ├─ partitions are revoked          (a last commit, then) released
        │
        │  all is committed                finish
        ▼  the run is over                 stop
    the consumer is left                   close

A hook that is not overridden is never called and costs nothing. The same hook of several extensions is called in the
order of the extensions; ``released``, ``stop`` and ``close`` in reverse order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from aioparallel.records.errors import ConfigurationError

if TYPE_CHECKING:
    from aioparallel.config.handling import CallNext
    from aioparallel.config.options import Options
    from aioparallel.delivery.dead_letters import LetterBox
    from aioparallel.delivery.producer import Producer
    from aioparallel.engine.run.processor import Processor
    from aioparallel.engine.sinks import DeadLetterSink, OutputSink
    from aioparallel.group.admission import Admission
    from aioparallel.group.assignment import Assignment
    from aioparallel.group.client import Client, CommitFault, Committed
    from aioparallel.group.committing import CommitStrategy, GroupContext
    from aioparallel.group.membership import Membership
    from aioparallel.group.priorities import Priorities
    from aioparallel.handlers.stack import Handlers
    from aioparallel.http.requests import SendRequest
    from aioparallel.observe.health import Health, Problem
    from aioparallel.observe.stats import Stats
    from aioparallel.records.record import Outgoing, Record, TopicPartition
    from aioparallel.records.skipped import Skipped

__all__ = ["NO_LANES", "ConsumerContext", "Extension", "PartitionState", "overrides"]

NO_LANES: Final[Mapping[int, Hashable]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, repr=False)
class ConsumerContext:
    """The consumer that an extension belongs to."""

    group_id: str
    servers: str
    """The bootstrap servers."""
    options: Options
    group_client: Client | None
    """:attr:`client`, or None for a member of a share group."""
    producer: Producer | None
    """None if the user passed a ``client`` but no ``producer``."""
    plain_producer: Callable[[], Producer | None]
    """Returns a producer that writes outside of transactions: ``producer``, or with ``Transactions`` a new one, which
    the extension must stop."""
    fail: Callable[[BaseException], None]
    """Ends the run, which raises this error."""
    is_running: Callable[[], bool]
    """Whether records are read and run: false before the run, and as soon as it begins to end."""
    partitions: Callable[[], Collection[TopicPartition]]
    """The partitions that the consumer has now."""
    stats: Callable[[], Stats]
    """``ParallelConsumer.stats()``."""
    health: Callable[[], Health]
    """``ParallelConsumer.health()``."""
    skip: Callable[..., Awaitable[Sequence[Skipped]]]
    """``ParallelConsumer.skip()``."""

    @property
    def client(self) -> Client:
        """Reads the topics, as a member of the consumer group. Raises ConfigurationError for a member of a share
        group."""
        if self.group_client is None:
            raise ConfigurationError(
                "client", None, "is what an extension needs: a client in a consumer group. This is a share group"
            )
        return self.group_client


class PartitionState:
    """What an extension keeps for one partition, from its assignment until it is revoked.

    Every method does nothing by default. None of them may block: they are called for each record.
    """

    __slots__ = ()

    def select(self, records: Sequence[Record[Any, Any]]) -> Sequence[Record[Any, Any]]:
        """Return those of these newly fetched records that should run. They are in order of offset.

        The others are complete at once.
        """
        return records

    def gave_up(self, offset: int) -> None:
        """A record was dead-lettered or skipped. :meth:`completed` follows."""

    def completed(self, offset: int) -> None:
        """A record that :meth:`select` has returned is complete. Not called once the partition is revoked."""

    def completed_all(self, offsets: Sequence[int]) -> None:
        """Several records are complete."""
        for offset in offsets:
            self.completed(offset)

    def completed_unread(self, offsets: Sequence[int]) -> None:
        """Offsets became complete before their records were fetched: they are skipped. :meth:`select` gets none of
        these records."""

    @property
    def has_news(self) -> bool:
        """Whether a commit is needed although no record has completed since the last one."""
        return False

    def acknowledged(self) -> None:
        """The broker has the last commit of the partition, and what belonged to it. Not called once the partition is
        revoked or lost."""

    def lanes(self) -> Mapping[int, Hashable]:
        """Return the lane of each record that is complete and not committed, where one of them must not be committed
        before another one of its lane. Only ``Transactions`` asks."""
        return NO_LANES


class Extension:
    """Adds something to a consumer: ``ParallelConsumer(..., extensions=[MyExtension()])``.

    Override the hooks that you need; each does nothing by default. The module has a diagram of when they are called.
    All of them run on the event loop of the consumer. An exception from a hook ends the run, unless its description
    says otherwise. Each consumer needs its own extensions.
    """

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """The extension now belongs to this consumer, which is being made. Raises ConfigurationError for options that
        cannot be combined with it."""

    def check_max_concurrency(self, most: int) -> None:
        """So many handlers may run at once from now on, because ``ParallelConsumer.max_concurrency`` is set. Raises
        ConfigurationError if that is too many for the extension; then nothing changes."""

    def topics(self) -> Mapping[str, str]:
        """Return the topics that the extension writes itself, each with the option that names it. The consumer refuses
        to read them, and topic patterns leave them out."""
        return {}

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """The consumer connects, and reads these partitions. Check what the extension needs, within ``timeout``
        seconds. Raises ConfigurationError, ClientError, TimeoutError."""

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return what runs instead of the user's handler, or handlers by topic."""
        return handlers

    async def close(self) -> None:
        """The consumer is left, and everything is committed. Called once for each consumer that was entered, even if
        that failed. Cancelled after 10 seconds."""

    # -- the run ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """The run begins. The group is joined next. Cancelled if the run ends meanwhile."""

    async def work(self) -> None:
        """Runs in the background until it is cancelled. May return early if there is nothing to do."""

    async def finish(self) -> None:
        """The run ends and everything is committed. If this leads to changes (``has_news``), they are committed once
        more. Cancelled by a stop without draining, and after 60 seconds."""

    async def stop(self) -> None:
        """The run is over, after the last commit. Called if :meth:`start` was called, even if that failed. After a
        failed run it is called when the consumer is left. Cancelled after 60 seconds, or 5 seconds after a hurried
        stop."""

    # -- partitions -------------------------------------------------------------------------------------

    def assigned(self, assignment: Assignment) -> PartitionState | None:
        """A partition was assigned. Return its state, or None. Another call for the same partition means that its
        topic was created anew, or that the consumer has lost the partition and got it back."""
        return None

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Read what was saved for these partitions; their records wait until then. ``positions``: where each begins;
        None: nothing is committed.

        No other member commits for them any more, so what was saved does not change. Returns the partitions that are
        ready, within ``timeout`` seconds. The others are requested again, also after a TimeoutError: continue where
        this call has ended. Raises ClientError if waiting cannot help.
        """
        return positions.keys()

    def released(self, partition: TopicPartition) -> None:
        """The partition was revoked or lost. Its last commit, if any, has been answered."""

    # -- attempts ---------------------------------------------------------------------------------------

    def may_attempt(self, record: Record[Any, Any]) -> None:
        """An attempt is about to begin; key and value are bytes. An exception fails the attempt;
        :class:`~aioparallel.RetryLater` delays it."""

    def before_attempt(self, record: Record[Any, Any]) -> None:
        """Like :meth:`may_attempt`, with key and value deserialised."""

    async def attempt(self, item: Any, call_next: CallNext) -> object:
        """Run the attempt: ``return await call_next(item)``. Returns the handler's result, such as its outputs, and
        raises its exceptions. ``item``: the record, or the batch of a batch handler. This is middleware, outside of the
        user's."""
        return await call_next(item)

    def dead_letter_sink(self, sink: DeadLetterSink | None) -> DeadLetterSink | None:
        """Return the sink for records that failed for good. ``sink``: the one that would be used; None: there is none.
        Called when the run begins."""
        return sink

    def output_sink(self, sink: OutputSink) -> OutputSink:
        """Return what sends outputs, around ``sink``, which would send them. Called when the run begins, but not for
        ``results()``. Keep ``is_exact``. Pass on all calls, or None and ``deliver`` instead of ``offer``."""
        return sink

    def letter_box(self, box: LetterBox) -> LetterBox:
        """Return what sends dead letters, and records to retry topics, around ``box``, which would send them. Called
        when the run begins. Pass on letters themselves, or copies by ``dataclasses.replace``."""
        return box

    def around_requests(self, send: SendRequest, kept: Collection[str] | None) -> SendRequest:
        """Return what sends the requests of an ``http_handler``, around ``send``. Called when its client opens.
        ``kept``: names of headers, in lower case, that must stay as they are, besides those of the request itself;
        None: all must."""
        return send

    # -- commits ----------------------------------------------------------------------------------------

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """These positions are committed next. Save what belongs to them, within ``timeout`` seconds.

        Returns the partitions that must not be committed now, with the reason: they are tried again at the next commit.
        What is saved may be newer than the position, never older. Calls for one group do not overlap. Cancelled if it
        takes much longer than ``timeout``, or if the commit is no longer needed; a thread that it has started goes on.
        """
        return {}

    def commit_outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
        """Return outputs to write in the same transaction as this position. Only with ``Transactions``."""
        return ()

    def commit_outputs_too_large(self) -> None:
        """The brokers have refused one of :meth:`commit_outputs` for its size, and the transaction is tried again."""

    # -- replacements: at most one extension of a consumer has each ----------------------------------------

    def membership(self, group_id: str, servers: str, options: Options) -> Membership | None:
        """Return how the consumer is a member of its group, and what its run is, instead of a member of a consumer
        group. Called before :meth:`attach`; :meth:`client` is not called then. ``servers``: the bootstrap servers."""
        return None

    def client(self, group_id: str, member_of: Callable[[str], Client]) -> Client | None:
        """Return the client that reads for this group; ``member_of(group_id)`` makes the usual one. Called before
        :meth:`attach`, unless the user passed a client."""
        return None

    def output_sinks(self) -> tuple[OutputSink, LetterBox] | None:
        """Return where outputs and dead letters go instead of the producer."""
        return None

    def commit_strategy(self, group: GroupContext) -> CommitStrategy | None:
        """Return what keeps and writes positions instead of the consumer group. Called when the run begins."""
        return None

    def admission(self, processor: Processor) -> Admission | None:
        """Return what admits fetched records and decides when offsets are complete. Called when the run begins."""
        return None

    def priorities(self) -> Priorities | None:
        """Return which partitions are more urgent than others. Called when the run begins."""
        return None

    arrival_topics: Collection[str] = ()
    """Topics for which the consumer keeps the arrival time of each record, by its own clock."""

    # -- monitoring -------------------------------------------------------------------------------------

    def attempts_ended(
        self, records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, error: BaseException | None
    ) -> None:
        """Handlers have ended for these records. Called at least once for 16 records, so return within microseconds.

        ``calls``: how many calls of the handler these were. Successes of one partition in one turn of the event loop
        are reported together: one call for each record. A batch is one call with several records. ``began``: when the
        call of the first record began, by ``time.perf_counter()``. ``seconds``: how long a call took, their mean. Calls
        that have suspended are reported together only if the longest took less than twice as long as the shortest.
        ``error``: what the handler raised. Copy ``records`` to keep them.
        """

    def attempt_failed(self, record: Record[Any, Any], error: BaseException, follows: str, delay: float | None) -> None:
        """An attempt of this record has raised ``error``, or its outputs were not delivered, and what follows is
        decided: "retried", "waits" (no attempt is counted), "retry topic", "dead-lettered", "skipped", "released",
        "stopped" (the run ends), or "put back" (a drain, or the end of the run, has cancelled it). ``delay``: seconds
        until the next attempt, if known. Of a batch, called for each record. Called after :meth:`attempts_ended`."""

    def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
        """These records of one partition have an outcome: "succeeded" (their outputs are acknowledged),
        "dead-lettered", "skipped" or "released". Called about as often as :meth:`attempts_ended`, but not for records
        of partitions that were revoked or lost meanwhile."""

    def commit_ended(
        self,
        positions: Mapping[TopicPartition, Committed],
        faults: Mapping[TopicPartition, CommitFault],
        seconds: float,
    ) -> None:
        """A commit of these positions was answered after so many seconds. ``faults``: the partitions whose position was
        not accepted, and why."""

    def problems(self) -> Iterable[Problem]:
        """Return the current problems, for ``health()``."""
        return ()

    def stats(self, found: Stats) -> Stats:
        """Return the statistics with those of the extension added."""
        return found


def overrides(one: object, base: type, name: str) -> bool:
    """Whether the class of ``one`` overrides the attribute ``name`` of ``base``."""
    return getattr(type(one), name) is not getattr(base, name)
