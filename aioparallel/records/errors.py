"""Every exception of the project.

::

    AioparallelError
    ├── ConfigurationError (also ValueError)   an option is wrong, or two options conflict
    ├── ConsumerStateError (also RuntimeError) a call that the object's state does not allow: run twice, closed, ...
    ├── NotSkipped                             ParallelConsumer.skip() did not skip a record; the message says why
    ├── LoopThreadEnded (also RuntimeError)    the thread that ran an event loop has ended
    ├── OffsetMapError (also ValueError)       commit metadata is not a readable offset map
    ├── BrokerStartError                       a broker for tests or the demo did not start
    ├── JavaNotFound                           no Java runtime that is new enough
    ├── TaskFailed                             a Spark task failed with an error that the JVM cannot receive
    ├── CheckFailed                            a Spark pipeline lacks something that it needs
    ├── JarsMissing                            jars that Java needs are missing and could not be downloaded
    ├── ClientError                            the Kafka client or the cluster
    │   ├── BrokerUnreachable                  no broker answered within the deadline
    │   ├── ClusterChanged                     the addresses now lead to another cluster
    │   ├── AuthenticationFailed               TLS or the login failed
    │   ├── TopicNotFound                      a topic given by name does not exist
    │   ├── NotAuthorized                      the user may not use the topic or the group
    │   ├── OffsetOutOfRange                   the position is outside the log
    │   ├── PositionOutsideLog                 the same, and a store or the state of keys depends on the position
    │   ├── StateLogTruncated                  the log no longer holds the records that a partition's state needs
    │   ├── StateNotRestored                   the state of a partition cannot be restored
    │   ├── NoCommittedOffset                  nothing is committed, and auto_offset_reset="error"
    │   ├── NoOffsetMap                        a commit has no readable offset map, and Transactions or SqlStore need it
    │   ├── TransactionsUnsupported            the brokers are too old for commits=Transactions(...)
    │   ├── NotCommitted                       the broker did not acknowledge a commit that was waited for
    │   ├── InstanceFenced                     another process has joined with the same group_instance_id
    │   ├── FetchFailed                        data of a partition cannot be read
    │   │   └── UnreadableBatch                one batch: which offsets, and how to skip it
    │   └── ProduceFailed                      an output could not be written; fails its record
    ├── RecordFailure                          why an attempt failed, or why one record ended the run
    │   ├── HandlerTimeout (also TimeoutError) the handler ran longer than handler_timeout
    │   ├── HandlerCancelled                   the handler ended with a CancelledError of its own
    │   ├── DeferralTimeout (also TimeoutError) a deferred record was not completed in time
    │   ├── NoHandler                          handlers are given by topic, and this topic has none
    │   ├── DeserializationError               a deserialiser rejected the key or the value
    │   ├── UndecodableRecord                  the record cannot be decoded; the handler was not called
    │   ├── UnreadableRow                      a Spark row has a value that Python cannot represent
    │   ├── RecordWithoutKey                   a record has no key, and the consumer keeps a state for each key
    │   ├── StateFailed                        State.apply raised
    │   ├── InvalidOutput (also TypeError)     the handler returned something that cannot be produced
    │   ├── ProcessDied                        the process that ran the call ended (in_processes)
    │   ├── FailedInProcess                    the handler's exception cannot be pickled (in_processes)
    │   ├── RequestFailed                      an HTTP request or its response failed (aioparallel.http)
    │   ├── RequestTimeout (also TimeoutError) no response in time
    │   ├── BadStatus                          the response has a status that means failure
    │   └── RecordStopped                      a record's retries have ended, and the policy says stop
    ├── HandlerNotStopped                      a handler still runs after its cancellation and after its event loop
    ├── WorkCancelled                          something awaited was cancelled by other code than the consumer
    ├── RetryLater                             raised by a handler: try this record again after a delay
    │   └── NotToBlame                         the library waits: a host is at its limit, a database is down
    │       └── OutOfResources                 the process is out of file descriptors, memory, threads or disk
    └── Reject                                 raised by a handler: this record will never succeed

Each message says what happened, with topic, partition and offset, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.user_errors import repr_of, text_of

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
    "InstanceInUse",
    "InvalidOutput",
    "JarsMissing",
    "JavaNotFound",
    "LoopThreadEnded",
    "NoCommittedOffset",
    "NoHandler",
    "NoOffsetMap",
    "NotAuthorized",
    "NotCommitted",
    "NotSkipped",
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
    """Base class of all errors of the project."""


class ConfigurationError(AioparallelError, ValueError):
    """An option is wrong. The message has its name, its value and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option}={repr_of(value)}: {allowed}")
        self.option = option
        self.value = value
        self.allowed = allowed


class ConsumerStateError(AioparallelError, RuntimeError):
    """A call that the object's state does not allow."""


class NotSkipped(AioparallelError):
    """Records were not skipped by ``ParallelConsumer.skip()``. ``reason``: why."""

    def __init__(self, partition: TopicPartition, offsets: Sequence[int], reason: str) -> None:
        more = f" and {len(offsets) - 5} more" if len(offsets) > 5 else ""
        which = ", ".join(map(str, offsets[:5]))
        super().__init__(f"{partition}: offset{'s' * (len(offsets) > 1)} {which}{more}: {reason}")
        self.partition = partition
        self.offsets = tuple(offsets)
        self.reason = reason


class LoopThreadEnded(AioparallelError, RuntimeError):
    """The thread of the event loop has ended, belonged to another process, or its flow is closed."""


class OffsetMapError(AioparallelError, ValueError):
    """Commit metadata is not a readable offset map; the message says why.

    The consumer goes on without a map, so the records above the committed offset run again.
    """


class BrokerStartError(AioparallelError):
    """A broker for tests or the demo did not start."""


class JavaNotFound(AioparallelError):
    """No Java runtime is new enough. The message lists those that were found."""


class JarsMissing(AioparallelError):
    """Jars that a Java program needs are missing and could not be downloaded."""


class CheckFailed(AioparallelError):
    """A pipeline lacks things that it needs. ``findings``: a sentence for each, with what to do."""

    def __init__(self, findings: Sequence[str]) -> None:
        things = "one thing keeps" if len(findings) == 1 else f"{len(findings)} things keep"
        lines = "".join(f"\n  {number}. {finding}" for number, finding in enumerate(findings, 1))
        super().__init__(f"{things} this pipeline from starting:{lines}")
        self.findings = tuple(findings)


class ClientError(AioparallelError):
    """A failure of the Kafka client or the cluster that does not pass by itself."""


class BrokerUnreachable(ClientError):
    """No broker answered within the deadline."""

    def __init__(self, bootstrap_servers: str, seconds: float, reason: str) -> None:
        super().__init__(
            f"no Kafka broker answered at {bootstrap_servers} within {seconds:g} s ({reason}); "
            "check bootstrap_servers, the network, and whether the cluster wants TLS or a login (security)"
        )
        self.bootstrap_servers = bootstrap_servers


class ClusterChanged(ClientError):
    """The configured addresses lead to another cluster than at the start.

    Nothing was read from it, committed or produced to it: positions and outputs belong to the first cluster.
    ``before``, ``found``: the two cluster ids.
    """

    def __init__(self, bootstrap_servers: str, before: str, found: str) -> None:
        super().__init__(
            f"another Kafka cluster answers at {bootstrap_servers}: its id is {found!r}, and this client began with "
            f"{before!r}. Nothing was read from it, committed or produced to it. Let bootstrap_servers lead to the "
            "first one; if you want the other one, check what the group has committed there, and start again"
        )
        self.bootstrap_servers = bootstrap_servers
        self.before = before
        self.found = found


class AuthenticationFailed(ClientError):
    """TLS or the login failed: client and broker do not trust each other, or their protocols differ."""

    def __init__(self, server: str, reason: str, advice: str) -> None:
        super().__init__(f"no secure connection to {server}: {reason}; {advice}")
        self.server = server
        self.reason = reason
        self.advice = advice


class TopicNotFound(ClientError):
    """A topic given by name does not exist. Nothing was created.

    ``uses``: the purpose of some of the topics, for the message.
    """

    def __init__(self, topics: Collection[str], bootstrap_servers: str, uses: Mapping[str, str] | None = None) -> None:
        self.uses = uses = uses or {}
        names = ", ".join(f"{topic} ({uses[topic]})" if topic in uses else topic for topic in sorted(topics))
        super().__init__(
            f"topic not found at {bootstrap_servers}: {names}; create it first, or check the name and this "
            "user's permission to describe it (nothing was created)"
            if len(topics) == 1
            else f"topics not found at {bootstrap_servers}: {names}; create them first, or check the names and this "
            "user's permission to describe them (nothing was created)"
        )
        self.topics = tuple(sorted(topics))


class NotAuthorized(ClientError):
    """The user may not use the topic or the group."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not authorised for {what}; ask for the permission, or check the credentials")


class OffsetOutOfRange(ClientError):
    """The position to read from is outside the log of the partition."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition}: offset {offset} is outside the log (deleted by retention, or the log was truncated); "
            'set auto_offset_reset to "earliest" or "latest", or commit an offset inside the log'
        )
        self.partition = partition
        self.offset = offset


class PositionOutsideLog(ClientError):
    """A position is outside the log (deleted by retention, truncated, or the topic was created anew), and rows of a
    store or the state of keys belong to it. The offsets may be other records now, so the run ends."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition}: position {offset} is outside the log (deleted by retention, truncated, or the topic was "
            "created anew), and the data of the records that are complete there (rows of a store, the state of keys) "
            "belongs to that position. Check what the log holds, then begin anew. With SqlStore: delete the "
            "partition's rows from all of its tables (documentation: Positions in a database). Otherwise: delete the "
            "group's offset of the partition (kafka-consumer-groups.sh --delete-offsets). Then start again with "
            "start_at or auto_offset_reset"
        )
        self.partition = partition
        self.offset = offset


class StateLogTruncated(ClientError):
    """The log begins after records that a partition's state needs and that no usable snapshot includes."""

    def __init__(self, partition: TopicPartition, group_id: str, needed: int, begins: int, why: str) -> None:
        super().__init__(
            f"{partition}: the state of group {group_id!r} at its committed position needs the records from offset "
            f"{needed} on ({why}), and the log begins at {begins}: they are deleted. Set retention.ms to more than "
            "State(snapshot_interval=) plus the longest pause. To go on with an empty state from the begin of the log: "
            f"kafka-consumer-groups.sh --bootstrap-server ... --group {group_id} --topic "
            f"{partition.topic}:{partition.partition} --delete-offsets, or use another group_id"
        )
        self.partition = partition
        self.needed = needed
        self.begins = begins


class StateNotRestored(ClientError):
    """The state of a partition's keys cannot be restored, and none of its records may run without it."""

    def __init__(self, partition: TopicPartition, reason: str) -> None:
        super().__init__(f"{partition}: its state cannot be restored: {reason}")
        self.partition = partition


class NoCommittedOffset(ClientError):
    """The group has committed nothing for a partition, and ``auto_offset_reset`` or
    ``auto_offset_reset_new_partitions`` is ``"error"``."""

    def __init__(self, partition: TopicPartition, group_id: str, option: str = "auto_offset_reset") -> None:
        super().__init__(
            f"{partition}: group {group_id!r} has no committed offset and {option} is 'error'; "
            f'commit one, use start_at, or set {option} to "earliest" or "latest"'
        )
        self.partition = partition


class NoOffsetMap(ClientError):
    """The metadata of a committed offset is not an offset map, and records must not run twice (Transactions, SqlStore).

    Without the map it is not known which records above the offset are complete: they would run again, and their
    results would be written twice. So the run ends before anything is read.
    """

    def __init__(self, partition: TopicPartition, group_id: str, offset: int, reason: Exception) -> None:
        super().__init__(
            f"{partition}: the metadata that group {group_id!r} has committed with offset {offset} is not an offset "
            f"map ({reason}), so it is not known which records above are complete. If none are (another program "
            "committed it), or if their results may be written twice, commit the offset alone and start again: "
            f"kafka-consumer-groups.sh --bootstrap-server ... --group {group_id} --topic "
            f"{partition.topic}:{partition.partition} --reset-offsets --to-offset {offset} --execute (if a SqlStore "
            "keeps positions: set offset_map = '' in the partition's row of its table of positions)"
        )
        self.partition = partition


class TransactionsUnsupported(ClientError):
    """The brokers lack the version of transactions that ``commits=Transactions(...)`` needs."""

    def __init__(self, servers: str, found: str) -> None:
        super().__init__(
            f"the brokers at {servers} {found}: commits=Transactions(...) needs the feature transaction.version 2 or "
            "newer (Apache Kafka 4.0 or newer; on a cluster that was upgraded: kafka-features.sh --bootstrap-server "
            "... upgrade --feature transaction.version=2). To try it out, `aioparallel broker --kafka` starts such a "
            "broker. Leave commits out to produce at least once"
        )


class InstanceFenced(ClientError):
    """Another process has joined the group with this one's ``group_instance_id`` and taken its place.

    Nothing more of this run is committed; the other process runs it again. There is no automatic restart: the two
    processes would fence each other for ever.
    """

    def __init__(self, group_id: str, instance_id: str) -> None:
        super().__init__(
            f"group {group_id!r}: another process has joined with group_instance_id {instance_id!r} and has taken "
            "this one's place (FENCED_INSTANCE_ID); nothing more of this run is committed. Give each process its own "
            "group_instance_id (client_options), or stop the other one and start this one again"
        )
        self.group_id = group_id
        self.instance_id = instance_id


class InstanceInUse(ClientError):
    """Another member of the group has this one's ``group_instance_id`` and has not left (KIP-848).

    A member that has crashed has it until its session expires, so joining was tried for longer than that.
    """

    def __init__(self, group_id: str, instance_id: str) -> None:
        super().__init__(
            f"group {group_id!r}: another member has the group_instance_id {instance_id!r} and has not left "
            "(UNRELEASED_INSTANCE_ID). Give each process its own group_instance_id (client_options), or stop the other "
            "one first"
        )
        self.group_id = group_id
        self.instance_id = instance_id


class NotCommitted(ClientError):
    """A commit that was waited for was not acknowledged. Unless a later commit includes them, its records run again at
    the next owner. ``partitions``: reasons by partition. ``trouble``: other facts for the message."""

    def __init__(self, group_id: str, partitions: Mapping[TopicPartition, str], trouble: Sequence[str] = ()) -> None:
        named = [f"{partition} ({why})" for partition, why in list(partitions.items())[:5]]
        more = f", and {len(partitions) - len(named)} more partitions" if len(partitions) > len(named) else ""
        more += "".join(f"; {one}" for one in trouble)
        super().__init__(f"group {group_id!r}: no acknowledged commit of {', '.join(named)}{more}")
        self.partitions = dict(partitions)


class FetchFailed(ClientError):
    """Data of a partition cannot be read."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(f"{partition}: cannot read at offset {offset}: {reason}")
        self.partition = partition
        self.offset = offset


class UnreadableBatch(FetchFailed):
    """A batch of a partition cannot be read: its checksum is wrong, its codec is unknown, or its structure is broken.

    ``offset``: the first offset that was not read. ``batch``: the batch's base offset, by which ``skip_unreadable``
    names it. ``next_offset``: the first one after it; None if the damage hides it, and then the batch cannot be
    skipped.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, batch: int, next_offset: int | None, reason: str
    ) -> None:
        if next_offset is None:
            behind, way = "to an unknown end", "It cannot be skipped alone, as its end is unknown"
        else:
            behind = f"to {next_offset - 1}"
            way = (
                "To skip just this batch and lose its records: "
                f'skip_unreadable=[("{partition.topic}", {partition.partition}, {batch})], on the command line '
                f"--skip-unreadable {partition.topic}:{partition.partition}:{batch}"
            )
        super().__init__(
            partition,
            offset,
            f"the batch at offset {batch} cannot be read ({reason}), so offsets {offset} {behind} are not; nothing was "
            f"skipped. Let a replica lead that has it intact, or install the client's codec. {way}",
        )
        self.batch = batch
        self.next_offset = next_offset
        self.reason = reason


class ProduceFailed(ClientError):
    """An output could not be written. ``passing``: whether the same output may succeed later. ``too_large``: whether
    it was refused for its size."""

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
    """Not an Exception, so that it is not retried: every record would fail the same way."""


class RecordFailure(AioparallelError):
    """Why one record failed."""


class HandlerTimeout(RecordFailure, TimeoutError):
    """The handler ran longer than ``handler_timeout`` and was cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the handler did not end within its timeout of {seconds:g} s and was cancelled")
        self.seconds = seconds


class HandlerCancelled(RecordFailure):
    """The handler ended with a CancelledError that nothing outside sent: it raised it, or awaited cancelled work."""

    def __init__(self) -> None:
        super().__init__("the handler ended with CancelledError, though nothing had cancelled it from outside")


class LockLost(RecordFailure):
    """The lock of a record of a share group has ended, or is about to and cannot be renewed. Its handler was not
    called, or was cancelled. The record is delivered again, to any member."""

    def __init__(self) -> None:
        super().__init__(
            "its lock ends and cannot be renewed, so it is delivered again; its handler was cancelled or not called"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()


class LastDelivery(RecordFailure):
    """A record of a share group did not end in its last delivery, because the run or its lock ended. Or it came in its
    last delivery although it had not failed in ``max_deliveries`` before: its handler was not called."""

    def __init__(self, *, begun: bool = True) -> None:
        super().__init__(
            "it has not ended in its last delivery: the run has stopped, or its lock could not be renewed"
            if begun
            else "it has come in its last delivery, in which it is not begun: members that had it were killed or "
            "stopped, and if this one died as well, it would be lost"
        )
        self.begun = begun

    def __reduce__(self) -> tuple[object, ...]:
        return _last_delivery, (self.begun,)


def _last_delivery(begun: bool) -> LastDelivery:
    return LastDelivery(begun=begun)


class DeferralTimeout(RecordFailure, TimeoutError):
    """A deferred record was not completed, failed or rejected in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"deferred, and not completed within {seconds:g} s after the handler had returned")
        self.seconds = seconds


class DeserializationError(RecordFailure):
    """A deserialiser raised; its own error is the ``__cause__``. ``part`` is ``"key"`` or ``"value"``."""

    def __init__(self, part: str, size: int, error: BaseException) -> None:
        super().__init__(f"cannot read the {part} ({size} bytes): {type(error).__name__}: {text_of(error)}")
        self.part = part


class TaskFailed(AioparallelError):
    """Has the text of a Spark task's error, which itself could not be passed to the JVM."""


class UnreadableRow(RecordFailure):
    """A Spark row has a value that Python cannot represent. The handler was not called, and a retry cannot help."""


class UndecodableRecord(RecordFailure):
    """A record cannot be decoded completely. For example a header's name is not UTF-8, which brokers accept. The
    handler is not called, and nothing is retried: the failure policy gives the record up at once.

    Key, value and headers are set as far as they are readable. In a name that is not UTF-8 the invalid bytes are lone
    surrogates: ``name.encode("utf-8", "surrogateescape")`` returns its bytes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; the handler was not called, and a retry cannot help. Fix the producer of such records"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason,)


class NoHandler(RecordFailure):
    """Handlers are given by topic, and a topic found later has none."""

    def __init__(self, topic: str, known: Collection[str]) -> None:
        super().__init__(f"no handler for topic {topic!r}; there are handlers for {', '.join(sorted(known))}")


class RecordWithoutKey(RecordFailure):
    """A record has no key, and the consumer keeps a state for each key (``state``)."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} has no key, and a state belongs to a key: write records with keys, or let "
            "FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=...) dead-letter such records"
        )


class StateFailed(RecordFailure):
    """``State.apply`` raised for a record; its error is the cause. The handler was not called."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__(f"State apply raised {repr_of(error)} for {place}")


class InvalidOutput(RecordFailure, TypeError):
    """A handler returned something other than None, an Outgoing or an iterable of them.

    ``found``: what it was, if known.
    """

    def __init__(self, message: str, found: str = "") -> None:
        super().__init__(message)
        self.found = found


class ProcessDied(RecordFailure):
    """The process of ``in_processes`` that ran the call ended, or could not start.

    ``exitcode``: its exit code; negative: the signal that ended it (-9: killed, perhaps for memory); None: unknown.
    """

    def __init__(self, what: str, exitcode: int | None) -> None:
        super().__init__(f"the process {what}")
        self.exitcode = exitcode


class FailedInProcess(RecordFailure):
    """The handler raised an exception in its process that cannot be pickled or unpickled. Also the ``__cause__`` of
    one that can be. ``type``, ``text``, ``traceback``: of the original exception, as text."""

    def __init__(self, type: str, text: str, traceback: str) -> None:  # noqa: A002
        super().__init__(f"the handler raised {type} in its process: {text}")
        self.type = type
        self.text = text
        self.traceback = traceback
        self.add_note(traceback)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type, self.text, self.traceback)


class RequestFailed(RecordFailure):
    """A request could not be sent, or its response not be read to the end.

    ``request``: method and URL without query. ``reason``: what happened. The client's own error is left out: it may
    hold headers, the query and parts of the response."""

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(f"{request}: {reason}")
        self.request = request
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.reason)


class RequestTimeout(RecordFailure, TimeoutError):
    """No response in time. ``request``: method and URL without query."""

    def __init__(self, request: str, seconds: float) -> None:
        super().__init__(f"{request}: no answer within {seconds:g} s")
        self.request = request
        self.seconds = seconds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.seconds)


class BadStatus(RecordFailure):
    """The response has a status that means failure. ``request``: method and URL without query; ``status``: the code."""

    def __init__(self, request: str, status: int) -> None:
        super().__init__(f"{request}: answered {status}")
        self.request = request
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.request, self.status)


class InvalidValues(InvalidOutput):
    """A batch handler of items did not return one value for each, so values cannot be matched to items. All items of
    the batch fail; as the handler is wrong and no single item, none runs alone afterwards."""


class RecordStopped(RecordFailure):
    """The retries of a record have ended, and the policy stops the consumer."""


class RetryLater(AioparallelError):
    """Raise it in a handler to try the record again after ``delay`` seconds, for expected conditions such as a service
    that requests a delay. Logged at DEBUG. **Waiting is not failing**: it counts no attempt, and the delay does not
    count towards ``RetryPolicy(max_elapsed=...)``; ``RetryPolicy(max_wait=...)`` limits it.

    Raises ConfigurationError unless ``delay`` is from 0 to 10,000,000.
    """

    is_bounded: ClassVar[bool] = True
    """Whether a policy may end the waiting. False if the record's fate is not this member's to decide: the partition
    may have another owner, or the record may be complete."""

    def __init__(self, delay: float, reason: str = "") -> None:
        given: object = delay
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e7:
            raise ConfigurationError("RetryLater delay", delay, "must be seconds, from 0 to 10,000,000")
        super().__init__(reason or f"try again in {delay:g} s")
        self.delay = delay

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.delay, str(self)), self.__dict__  # its args are the text alone


class WorkCancelled(AioparallelError):
    """Something that the consumer awaited (a resource that opens, a user's function) ended with a CancelledError that
    the consumer did not send. Shield what other code cancels (``asyncio.shield``), or run it in a task of its own."""

    def __init__(self, what: str = "it") -> None:
        super().__init__(
            f"{what} ended with CancelledError though nothing had cancelled it: something that it awaits was cancelled"
        )


class HandlerNotStopped(AioparallelError):
    """``run_sync()`` has ended while a handler still runs though it was cancelled twice; it was left behind with its
    event loop. Another error of the run is the ``__cause__``.

    ``record``: its record, of a batch the first. ``stack``: where the handler is. ``left``: both, for all such
    handlers.
    """

    def __init__(self, left: Sequence[tuple[Record[Any, Any], str]]) -> None:
        record, stack = left[0]
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        super().__init__(
            f"the handler for {record.place}{more} still runs though it was cancelled twice, and was left behind with "
            "its event loop; its record is not committed, so it runs again. Let CancelledError pass in it: catch "
            f"Exception, not BaseException. It is at:\n{stack}"
        )
        self.record = record
        self.stack = stack
        self.left = tuple(left)


class NotToBlame(RetryLater):
    """The library waits for a reason that is not the record's: a host is at its limit, a database is down.
    ``RetryPolicy(max_wait=...)`` limits this as well; a retry function is not called."""


class OutOfResources(NotToBlame):
    """The process or its machine has run out of file descriptors, memory, threads or disk. A record whose handler
    fails because of that waits, whatever the handler's error was. ``what``: the system's description."""

    def __init__(self, what: str, delay: float = 1.0) -> None:
        super().__init__(delay, f"out of resources: {what}")
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.delay)


class Reject(AioparallelError):
    """Raise it in a handler when the record can never succeed: the policy's remaining retries are skipped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
