"""Every exception of the project.

::

    AioparallelError
    ├── ConfigurationError (also ValueError)   an option is wrong, or two do not fit together
    ├── ConsumerStateError (also RuntimeError) the consumer is used the wrong way round: run twice, closed, ...
    ├── LoopThreadEnded (also RuntimeError)    the thread of an event loop that was used from another one is gone
    ├── OffsetMapError (also ValueError)       commit metadata that is no readable offset map
    ├── BrokerStartError                       a broker for tests or the demo could not be started
    ├── JavaNotFound                           no Java runtime that is new enough
    ├── TaskFailed                             a task of Spark failed with an error that the JVM cannot get
    ├── CheckFailed                            what a pipeline of Spark needs is not as it must be
    ├── JarsMissing                            jars that Java needs are not there and could not be fetched
    ├── ClientError                            the Kafka client or the cluster behind it
    │   ├── BrokerUnreachable                  no broker answered within the deadline
    │   ├── ClusterChanged                     behind the same addresses is another cluster than before
    │   ├── AuthenticationFailed               TLS or the login: a broker and this client do not trust each other
    │   ├── TopicNotFound                      a topic asked for by name does not exist
    │   ├── NotAuthorized                      the cluster refuses this user the topic or the group
    │   ├── OffsetOutOfRange                   the log does not hold the position any more (or yet)
    │   ├── PositionOutsideLog                 the same, and a store or the state of keys belongs to the position
    │   ├── StateLogTruncated                  the log no longer holds what the state of a partition is made of
    │   ├── StateNotRestored                   the state of a partition cannot be made anew
    │   ├── NoCommittedOffset                  nothing committed, and auto_offset_reset="error"
    │   ├── NoOffsetMap                        the text beside an offset says nothing, and it must (Transactions)
    │   ├── TransactionsUnsupported            the brokers have not the transactions that are needed
    │   ├── NotCommitted                       the broker did not acknowledge a commit that was waited for
    │   ├── InstanceFenced                     another process has joined with this one's group_instance_id
    │   ├── FetchFailed                        a partition's data cannot be read
    │   │   └── UnreadableBatch                one batch of it: which offsets, and how to pass over it
    │   └── ProduceFailed                      an output could not be written; fails the record it belongs to
    ├── RecordFailure                          why an attempt failed, or the run because of one record
    │   ├── HandlerTimeout (also TimeoutError) the handler ran longer than handler_timeout
    │   ├── HandlerCancelled               the handler ended with a CancelledError of its own
    │   ├── DeferralTimeout (also TimeoutError) a deferred record was not completed in time
    │   ├── NoHandler                      handlers are given by topic, and this topic has none
    │   ├── DeserializationError               a deserialiser did not accept the key or the value
    │   ├── UndecodableRecord                  the record itself cannot be decoded; the handler was not called
    │   ├── UnreadableRow                      a row of Spark's has a value that Python cannot hold
    │   ├── RecordWithoutKey                   a record has no key, and the consumer keeps a state for each
    │   ├── StateFailed                        apply() of the state raised
    │   ├── InvalidOutput (also TypeError)     the handler returned something that cannot be produced
    │   ├── ProcessDied                        the process that ran the call ended (in_processes)
    │   ├── FailedInProcess                    it raised there what cannot be made anew here (in_processes)
    │   ├── RequestFailed                      a service could not be asked (aioparallel.http)
    │   ├── RequestTimeout (also TimeoutError) it did not answer in time
    │   ├── BadStatus                          it answered that it has failed
    │   └── RecordStopped                      a record's retries have ended, and the policy says stop
    ├── HandlerNotStopped                      a handler goes on though it was cancelled; its event loop has ended
    ├── WorkCancelled                          what was awaited was cancelled, and not by its consumer
    ├── RetryLater                             raised by a handler: try this record again after a delay
    │   └── NotToBlame                         the library itself waits: a host has no room, a database is away
    │       └── OutOfResources                 the process has no more file descriptors, memory, threads or disk
    └── Reject                                 raised by a handler: this record will never succeed

Each message says what happened, with which topic, partition and offset, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from aioparallel.records import Record, TopicPartition
from aioparallel.user_errors import repr_of, text_of

__all__ = [
    "AioparallelError",
    "AuthenticationFailed",
    "BadStatus",
    "BrokerStartError",
    "BrokerUnreachable",
    "CheckFailed",
    "ClientError",
    "ClusterChanged",
    "ConfigurationError",
    "ConsumerStateError",
    "DeferralTimeout",
    "DeserializationError",
    "FailedInProcess",
    "FetchFailed",
    "HandlerCancelled",
    "HandlerNotStopped",
    "HandlerTimeout",
    "InstanceFenced",
    "InvalidOutput",
    "JarsMissing",
    "JavaNotFound",
    "LoopThreadEnded",
    "NoCommittedOffset",
    "NoHandler",
    "NoOffsetMap",
    "NotAuthorized",
    "NotCommitted",
    "NotToBlame",
    "OffsetMapError",
    "OffsetOutOfRange",
    "OutOfResources",
    "PositionOutsideLog",
    "ProcessDied",
    "ProduceFailed",
    "RecordFailure",
    "RecordStopped",
    "RecordWithoutKey",
    "Reject",
    "RequestFailed",
    "RequestTimeout",
    "RetryLater",
    "StateFailed",
    "StateLogTruncated",
    "StateNotRestored",
    "TaskFailed",
    "TopicNotFound",
    "TransactionsUnsupported",
    "UndecodableRecord",
    "UnreadableBatch",
    "UnreadableRow",
]


class AioparallelError(Exception):
    """The top of the tree."""


class ConfigurationError(AioparallelError, ValueError):
    """An option is wrong: the message names it, the value found, and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option}={repr_of(value)}: {allowed}")
        self.option = option
        self.value = value
        self.allowed = allowed


class ConsumerStateError(AioparallelError, RuntimeError):
    """The consumer was used in a state that does not allow it."""


class LoopThreadEnded(AioparallelError, RuntimeError):
    """The thread whose event loop ran this has ended, or was of another process, or the flow in it is closed."""


class OffsetMapError(AioparallelError, ValueError):
    """Commit metadata that is no readable offset map; the message is the reason.

    Reading goes on without a map: the records above the committed offset run again.
    """


class BrokerStartError(AioparallelError):
    """A broker for tests or for the demo could not be started."""


class JavaNotFound(AioparallelError):
    """There is no Java runtime that is new enough; the message names those that were found."""


class JarsMissing(AioparallelError):
    """Jars that a Java program needs are not there, and could not be fetched."""


class CheckFailed(AioparallelError):
    """What a pipeline needs is not as it must be. ``findings``: all of it, a sentence each, with what to do."""

    def __init__(self, findings: Sequence[str]) -> None:
        things = "one thing keeps" if len(findings) == 1 else f"{len(findings)} things keep"
        lines = "".join(f"\n  {number}. {finding}" for number, finding in enumerate(findings, 1))
        super().__init__(f"{things} this pipeline from starting:{lines}")
        self.findings = tuple(findings)


class ClientError(AioparallelError):
    """The Kafka client, or the cluster behind it, reports a failure that waiting does not mend."""


class BrokerUnreachable(ClientError):
    """No broker answered within the deadline."""

    def __init__(self, bootstrap_servers: str, seconds: float, reason: str) -> None:
        super().__init__(
            f"no Kafka broker answered at {bootstrap_servers} within {seconds:g} s ({reason}); "
            "check bootstrap_servers, the network, and whether the cluster wants TLS or a login (security)"
        )
        self.bootstrap_servers = bootstrap_servers


class ClusterChanged(ClientError):
    """Behind the configured addresses is another cluster than the one that this client began with.

    Nothing was read from it, committed to it or produced to it: positions and outputs belong to the one before.
    ``before``, ``found``: the ids of both.
    """

    def __init__(self, bootstrap_servers: str, before: str, found: str) -> None:
        super().__init__(
            f"another Kafka cluster answers at {bootstrap_servers}: its id is {found!r}, and this client began with "
            f"{before!r}. Nothing was read from it, committed or produced to it. Let bootstrap_servers lead to the one "
            "before; where the other one is meant, look what the group has committed there, and start again"
        )
        self.bootstrap_servers = bootstrap_servers
        self.before = before
        self.found = found


class AuthenticationFailed(ClientError):
    """TLS or the login: a broker and this client do not trust each other, or do not speak the same way."""

    def __init__(self, server: str, reason: str, advice: str) -> None:
        super().__init__(f"no secure connection to {server}: {reason}; {advice}")
        self.server = server
        self.reason = reason
        self.advice = advice


class TopicNotFound(ClientError):
    """A topic asked for by name does not exist. Nothing was created.

    ``uses``: what some of the topics are for.
    """

    def __init__(self, topics: Collection[str], bootstrap_servers: str, uses: Mapping[str, str] | None = None) -> None:
        uses = uses or {}
        names = ", ".join(f"{topic} ({uses[topic]})" if topic in uses else topic for topic in sorted(topics))
        super().__init__(
            f"topic not found at {bootstrap_servers}: {names}; create it first, or check the name and this "
            "user's permission to describe it (nothing was created)"
        )
        self.topics = tuple(sorted(topics))


class NotAuthorized(ClientError):
    """The cluster refuses this user the topic or the group."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not authorised for {what}; ask for the permission, or check the credentials")


class OffsetOutOfRange(ClientError):
    """The log of a partition does not hold the position it should be read from."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition}: offset {offset} is outside the log (deleted by retention, or the log was truncated); "
            'set auto_offset_reset to "earliest" or "latest", or commit an offset inside the log'
        )
        self.partition = partition
        self.offset = offset


class PositionOutsideLog(ClientError):
    """A position is outside the log (deleted by retention, truncated, or the topic was made anew), and rows of a store
    or the state of keys belong to it. What is complete by it may be other records now, so the run ends, and nothing is
    lost."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition}: position {offset} is outside the log (deleted by retention, truncated, or the topic was "
            "made anew), and what is kept of the records that are complete there (rows of a store, the state of keys) "
            "belongs to that. Look what the log holds; then begin anew. With SqlStore: delete the partition's rows "
            "from all of its tables, as docs/stores.md has it. Otherwise: delete the group's offset of the partition "
            "(kafka-consumer-groups.sh --delete-offsets). Then start again with start_at or auto_offset_reset"
        )
        self.partition = partition
        self.offset = offset


class StateLogTruncated(ClientError):
    """The log begins behind records that a partition's state is made of and that no usable snapshot holds."""

    def __init__(self, partition: TopicPartition, group_id: str, needed: int, begins: int, why: str) -> None:
        super().__init__(
            f"{partition}: the state of group {group_id!r} at its committed position needs the records from offset "
            f"{needed} on ({why}), and the log begins at {begins}: they are deleted. Keep the topic for longer than "
            "State(snapshot_interval=) and the longest pause (retention.ms). To go on, begin with an empty state where "
            f"the log begins: kafka-consumer-groups.sh --bootstrap-server ... --group {group_id} --topic "
            f"{partition.topic}:{partition.partition} --delete-offsets, or another group_id"
        )
        self.partition = partition
        self.needed = needed
        self.begins = begins


class StateNotRestored(ClientError):
    """The state of a partition's keys cannot be made anew, and without it nothing of the partition may run."""

    def __init__(self, partition: TopicPartition, reason: str) -> None:
        super().__init__(f"{partition}: its state cannot be restored: {reason}")
        self.partition = partition


class NoCommittedOffset(ClientError):
    """The group has committed nothing for a partition, and the option for that is ``"error"``: ``auto_offset_reset``,
    or ``auto_offset_reset_new_partitions``."""

    def __init__(self, partition: TopicPartition, group_id: str, option: str = "auto_offset_reset") -> None:
        super().__init__(
            f"{partition}: group {group_id!r} has no committed offset and {option} is 'error'; "
            f'commit one, use start_at, or set {option} to "earliest" or "latest"'
        )
        self.partition = partition


class NoOffsetMap(ClientError):
    """The text beside a committed offset is no offset map, and records must not run twice (Transactions, SqlStore).

    Without it nobody knows which records above the offset are complete: they would run again, and their results be
    written twice. So the run ends, and nothing is read.
    """

    def __init__(self, partition: TopicPartition, group_id: str, offset: int, reason: Exception) -> None:
        super().__init__(
            f"{partition}: the text that group {group_id!r} has committed beside offset {offset} is no offset map "
            f"({reason}), so it is not known which records above are complete. If none are (another program has "
            "committed that), or their results may be written twice, commit the offset alone and start again: "
            f"kafka-consumer-groups.sh --bootstrap-server ... --group {group_id} --topic "
            f"{partition.topic}:{partition.partition} --reset-offsets --to-offset {offset} --execute (where a SqlStore "
            "keeps positions: set offset_map = '' in the partition's row of its table of positions)"
        )
        self.partition = partition


class TransactionsUnsupported(ClientError):
    """The brokers have not the transactions that ``commits=Transactions(...)`` needs."""

    def __init__(self, servers: str, found: str) -> None:
        super().__init__(
            f"the brokers at {servers} {found}: commits=Transactions(...) needs the feature transaction.version 2 or "
            "newer (Apache Kafka 4.0 or newer; on a cluster that was upgraded: kafka-features.sh --bootstrap-server "
            "... upgrade --feature transaction.version=2). Leave commits out to produce at least once"
        )


class InstanceFenced(ClientError):
    """Another process has joined the group with the ``group_instance_id`` of this one, which has lost its place there.

    Nothing of this run is committed from then on; what was not runs again at the other one. Nothing starts it again by
    itself: it would take the place back, and the two would throw each other out for ever.
    """

    def __init__(self, group_id: str, instance_id: str) -> None:
        super().__init__(
            f"group {group_id!r}: another process has joined with group_instance_id {instance_id!r}, and has taken "
            "this one's place (FENCED_INSTANCE_ID); nothing of this run is committed any more. Give each process a "
            "group_instance_id of its own (client_options), or stop the other one, and start this one again"
        )
        self.group_id = group_id
        self.instance_id = instance_id


class NotCommitted(ClientError):
    """A commit that was waited for was not acknowledged: what it would have said runs again at the next owner, unless a
    later commit says it. ``partitions``: whose, and why. ``trouble``: what else is known."""

    def __init__(self, group_id: str, partitions: Mapping[TopicPartition, str], trouble: Sequence[str] = ()) -> None:
        named = [f"{partition} ({why})" for partition, why in list(partitions.items())[:5]]
        more = f", and {len(partitions) - len(named)} more partitions" if len(partitions) > len(named) else ""
        told = "".join(f"; {one}" for one in trouble)
        super().__init__(f"group {group_id!r}: no acknowledged commit of {', '.join(named)}{more}{told}")
        self.partitions = dict(partitions)


class FetchFailed(ClientError):
    """The data of a partition cannot be read."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(f"{partition}: cannot read at offset {offset}: {reason}")
        self.partition = partition
        self.offset = offset


class UnreadableBatch(FetchFailed):
    """A batch of a partition cannot be read: its checksum is wrong, its codec is unknown, or its structure is broken.

    ``offset``: the first offset that was not read. ``batch``: the offset that the batch bears, by which
    ``skip_unreadable`` names it. ``next_offset``: the first one behind it; None where the damage leaves that open, and
    then nothing can pass over it.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, batch: int, next_offset: int | None, reason: str
    ) -> None:
        if next_offset is None:
            behind, way = "to an end that it does not tell", "It cannot be passed over alone, as its end is unknown"
        else:
            behind = f"to {next_offset - 1}"
            way = (
                "To pass over just this batch, whose records are lost then: "
                f'skip_unreadable=[("{partition.topic}", {partition.partition}, {batch})], on the command line '
                f"--skip-unreadable {partition.topic}:{partition.partition}:{batch}"
            )
        super().__init__(
            partition,
            offset,
            f"the batch at offset {batch} cannot be read ({reason}), so offsets {offset} {behind} are not; nothing was "
            f"skipped. Let a replica lead that has it whole, or have the client's codec. {way}",
        )
        self.batch = batch
        self.next_offset = next_offset
        self.reason = reason


class ProduceFailed(ClientError):
    """An output could not be written. ``passing``: whether the same output may well be taken later. ``too_large``:
    whether it is refused for its size."""

    def __init__(
        self, topic: str, partition: int | None, reason: str, *, passing: bool, too_large: bool = False
    ) -> None:
        where = topic if partition is None else f"{topic}-{partition}"
        super().__init__(f"could not produce to {where}: {reason}")
        self.topic = topic
        self.partition = partition
        self.reason = reason
        self.passing = passing
        self.too_large = too_large


class NotAHandler(BaseException):
    """Outside Exception, so that it is not retried: every record would end the same way."""


class RecordFailure(AioparallelError):
    """What went wrong with one record."""


class HandlerTimeout(RecordFailure, TimeoutError):
    """The handler ran longer than ``handler_timeout`` and was cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the handler did not end within its timeout of {seconds:g} s and was cancelled")
        self.seconds = seconds


class HandlerCancelled(RecordFailure):
    """The handler ended with a CancelledError that is its own: something it awaited was cancelled, or it raised it."""

    def __init__(self) -> None:
        super().__init__("the handler ended with CancelledError, though nothing had cancelled it from outside")


class DeferralTimeout(RecordFailure, TimeoutError):
    """A deferred record was neither completed, nor failed, nor rejected in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"deferred, and not completed within {seconds:g} s after the handler had returned")
        self.seconds = seconds


class DeserializationError(RecordFailure):
    """A deserialiser raised; its own error is the ``__cause__``. ``part`` is ``"key"`` or ``"value"``."""

    def __init__(self, part: str, size: int, error: BaseException) -> None:
        super().__init__(f"cannot read the {part} ({size} bytes): {type(error).__name__}: {text_of(error)}")
        self.part = part


class TaskFailed(AioparallelError):
    """The error of a task of Spark's, by its text: as it was, the JVM could not have got it."""


class UnreadableRow(RecordFailure):
    """A row of Spark's has a value that Python cannot hold; the handler was not called, and would never be."""


class UndecodableRecord(RecordFailure):
    """The brokers hold a record that cannot be decoded whole: the name of a header is not UTF-8, say, which is legal to
    them. The handler is not called, and nothing is tried again: the failure policy gives the record up at once.

    Key, value and headers are there as far as they are readable. A name that is not UTF-8 has each of its bytes that do
    not fit as a lone surrogate, as Python's ``surrogateescape`` has it: ``name.encode("utf-8", "surrogateescape")``
    gives its bytes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; the handler was not called, and to try again would read the same. Mend who writes such records"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason,)


class NoHandler(RecordFailure):
    """Handlers are given by topic, and a topic that has appeared since has none."""

    def __init__(self, topic: str, known: Collection[str]) -> None:
        super().__init__(f"no handler for topic {topic!r}; there are handlers for {', '.join(sorted(known))}")


class RecordWithoutKey(RecordFailure):
    """A record has no key, and the consumer keeps a state for each key (``state``)."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} has no key, and a state belongs to a key: give records one where they are written, or let "
            "FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=...) put such records away"
        )


class StateFailed(RecordFailure):
    """``State.apply`` raised for a record: its cause. The handler was not called."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__(f"State apply raised {repr_of(error)} for {place}")


class InvalidOutput(RecordFailure, TypeError):
    """A handler returned something that is neither None, nor an Outgoing, nor an iterable of them.

    ``found``: what it was, where it was that.
    """

    def __init__(self, message: str, found: str = "") -> None:
        super().__init__(message)
        self.found = found


class ProcessDied(RecordFailure):
    """The process of ``in_processes`` that ran the call ended, or could not be started.

    ``exitcode``: what it ended with; below 0 the signal that ended it (-9: killed, perhaps because memory ran out);
    None: it is not known.
    """

    def __init__(self, what: str, exitcode: int | None) -> None:
        super().__init__(f"the process {what}")
        self.exitcode = exitcode


class FailedInProcess(RecordFailure):
    """The handler raised an exception in its process that cannot be pickled, or not be made anew of that; and the
    ``__cause__`` of one that can. ``type``, ``text``, ``traceback``: of the exception there, as texts."""

    def __init__(self, type: str, text: str, traceback: str) -> None:  # noqa: A002
        super().__init__(f"the handler raised {type} in its process: {text}")
        self.type = type
        self.text = text
        self.traceback = traceback
        self.add_note(traceback)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type, self.text, self.traceback)


class RequestFailed(RecordFailure):
    """A service could not be asked, or its answer not be read to the end.

    ``request``: method and address, without its query. ``reason``: how it went. The client's own error is left out: it
    may hold the request's headers, its whole address, and parts of the answer."""

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(f"{request}: {reason}")
        self.request = request
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.reason)


class RequestTimeout(RecordFailure, TimeoutError):
    """A service has not answered in time. ``request``: method and address, without its query."""

    def __init__(self, request: str, seconds: float) -> None:
        super().__init__(f"{request}: no answer within {seconds:g} s")
        self.request = request
        self.seconds = seconds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.seconds)


class BadStatus(RecordFailure):
    """A service has answered with a status that says that it has failed. ``request``: method and address, without its
    query; ``status``: the code."""

    def __init__(self, request: str, status: int) -> None:
        super().__init__(f"{request}: answered {status}")
        self.request = request
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.status)


class InvalidValues(InvalidOutput):
    """A batch handler of items did not return one value for each: nobody can tell whose they are. That is wrong with
    the handler and with no item, so all of them have failed, and none runs by itself for it."""


class RecordStopped(RecordFailure):
    """The retries of one record have ended, and the policy says to stop the consumer."""


class RetryLater(AioparallelError):
    """Raise it in a handler to have the record tried again after ``delay`` seconds: for what is expected, such as a
    service that requests a delay. Logged at DEBUG. **Waiting is not failing**: it counts no attempt, and its seconds
    do not count for ``RetryPolicy(max_elapsed=...)``; ``RetryPolicy(max_wait=...)`` bounds it.

    Raises ConfigurationError unless ``delay`` is from 0 to 10,000,000.
    """

    is_bounded: ClassVar[bool] = True
    """Whether a policy may end it. Not where nothing can be decided about the record: it is another member's by now, or
    may be complete."""

    def __init__(self, delay: float, reason: str = "") -> None:
        given: object = delay
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e7:
            raise ConfigurationError("RetryLater delay", delay, "must be seconds, from 0 to 10,000,000")
        super().__init__(reason or f"try again in {delay:g} s")
        self.delay = delay

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.delay, str(self)), self.__dict__  # its args are the text alone


class WorkCancelled(AioparallelError):
    """What the consumer awaited (a resource that opens, a user's function) ended with a CancelledError that nobody here
    has sent: it awaits something that others cancel. Shield that (``asyncio.shield``), or give it a task of its own."""

    def __init__(self, what: str = "it") -> None:
        super().__init__(
            f"{what} ended with CancelledError, though nobody had cancelled it: something that it awaits was cancelled"
        )


class HandlerNotStopped(AioparallelError):
    """``run_sync()`` has ended, and a handler has not: it goes on though it was cancelled twice, so it was left behind
    with the event loop. What else the run has failed with is the ``__cause__``.

    ``record``: whose handler it is, of a batch the first one; ``stack``: where it stands. ``left``: both of all such
    handlers.
    """

    def __init__(self, left: Sequence[tuple[Record[Any, Any], str]]) -> None:
        record, stack = left[0]
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        super().__init__(
            f"the handler for {record.place}{more} goes on though it was cancelled twice, and was left behind with its "
            "event loop; its record is not committed, so it runs again. Let CancelledError pass in it: catch "
            f"Exception, not BaseException. It stands at:\n{stack}"
        )
        self.record = record
        self.stack = stack
        self.left = tuple(left)


class NotToBlame(RetryLater):
    """The library itself waits, and the record has nothing to do with it: a host has no room, a database is away.
    ``RetryPolicy(max_wait=...)`` bounds that as well; a retry function is not asked about it."""


class OutOfResources(NotToBlame):
    """The process, or its machine, has run out of something that a handler needs: file descriptors, memory, threads,
    disk. Whatever error a handler raises that comes of it, its record waits. ``what``: in the words of the system."""

    def __init__(self, what: str, delay: float = 1.0) -> None:
        super().__init__(delay, f"out of resources: {what}")
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.delay)


class Reject(AioparallelError):
    """Raise it in a handler when the record can never succeed: no more tries, whatever the policy still allows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
