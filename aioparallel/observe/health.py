"""The health of a running consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from aioparallel.observe.stats import Paused

__all__ = ["Health", "Problem", "ProblemKind"]


class ProblemKind(StrEnum):
    """What can be wrong, the most urgent first. The first paragraph says what it is, the second what to do."""

    FAILED = "failed"
    """The run has ended with the error in the message.

    Fix its cause and start again."""
    RESTARTING = "restarting"
    """The run has ended with an error or could not start, and ``aioparallel.web`` starts it again.

    Look at the error. If it stays, restarts do not help."""
    FENCED = "fenced"
    """The group refuses this member's commits.

    Nothing: it joins again, unless another process has its ``group_instance_id``, which ends the run."""
    BROKER_UNREACHABLE = "broker_unreachable"
    """A broker has not answered the consumer for five seconds or more, cannot be reached, or refuses its login.

    Check that broker, or what it refuses: the message says so. Records already read are still handled; what is not
    committed runs again after a restart."""
    NO_LEADER = "no_leader"
    """A partition has no leader, so it cannot be read.

    Check the brokers with its replicas."""
    STALLED = "stalled"
    """A partition has more records, but none has arrived for ``stalled_after`` seconds, whatever the cause.

    Check the brokers with its replicas, and the log. If only a restart of the consumer helps, report it."""
    OPEN_TRANSACTION = "open_transaction"
    """Another producer's transaction is open, so the records after it cannot be read under ``read_committed``. Nothing
    of the partition has arrived for ``stalled_after`` seconds; its lag does not include those records.

    Find the producer. ``kafka-transactions.sh --bootstrap-server ... find-hanging`` lists hanging transactions, and
    ``abort`` ends one."""
    UNREADABLE = "unreadable"
    """A batch of a partition cannot be read: its checksum is wrong, its codec is unknown, or its structure is broken.
    The partition waits there, and the batch is tried again twice a minute; other partitions go on.

    Let a replica lead that has it intact. ``skip_unreadable`` skips just the batch in the message."""
    TOPIC_GONE = "topic_gone"
    """A topic given by name no longer exists, so it is not read. The others go on.

    Create it again, or start the consumer without it."""
    COMMIT_REFUSED = "commit_refused"
    """The broker refuses the commits of a partition: not authorised, or the topic is gone.

    Give the user Read on group and topic. Records are still handled, and run again after a restart."""
    IN_DOUBT = "in_doubt"
    """It has been unknown for five seconds or more whether a transaction was committed, so nothing is committed.

    Check the brokers in the message: it continues by itself once they answer."""
    TRANSACTIONS_ABORTED = "transactions_aborted"
    """Transactions are aborted one after the other, so nothing is committed. Their outputs are kept.

    The message says why."""
    OUTPUTS_WAIT = "outputs_wait"
    """A transaction has waited for three seconds or more for its outputs to be written.

    Check the topic or the broker in the message; if it stays slow, transactions get smaller."""
    OUT_OF_RESOURCES = "out_of_resources"
    """Within the last ten seconds a handler failed because the process is out of file descriptors, memory, threads or
    disk. Its record waits, which is no failure.

    Raise the limit that the message names (``ulimit -n``, the memory of the container), or lower
    ``max_concurrency``."""
    DATABASE_AWAY = "database_away"
    """The database of a ``SqlStore`` has failed or refused its requests within the last ten seconds.

    The message says why. Records are tried again each second, which is no failure; they have had no effect so far."""
    OFFSETS_UNSTABLE = "offsets_unstable"
    """A partition stays closed because its offset belongs to a transaction that has not ended, for longer than the
    brokers allow.

    Does a member use a longer ``transaction_timeout``? ``kafka-transactions.sh`` finds and ends one that hangs."""
    EXTENSION = "extension"
    """An extension of the user's own reports this.

    Its author knows."""
    SEEN_UNSAVED = "seen_unsaved"
    """``Deduplicate`` cannot write what a partition has seen, so nothing of it is committed.

    Check its topic: may the user write to it, do its brokers answer?"""
    STATE_WAITS = "state_waits"
    """A partition stays closed because the state of its keys cannot be restored now.

    The message says what it waits for. It continues by itself."""
    STATE_UNSAVED = "state_unsaved"
    """The state of a partition's keys cannot be written: changelog records, so nothing is committed, or a full
    snapshot, so a restore takes longer and longer.

    Check the topics of ``State``: may the user write to them, do their brokers answer?"""
    NO_SOURCE = "no_source"
    """Records arrive without headers that name their source, so ``Deduplicate`` cannot recognise copies.

    Let the stage before write these headers."""
    LOOP_HELD = "loop_held"
    """In the last minute a handler or other code blocked the event loop: nothing else ran, and no heartbeat was sent.

    Let it await what takes long, or move that into a plain function for ``in_threads()``; the log has the line that
    blocked. Counts from 0.25 s; shorter ones are only logged."""
    HANDLER_STUCK = "handler_stuck"
    """A handler still runs after its cancellation.

    Let ``CancelledError`` pass in it, and set time limits for what it does in a thread."""
    LONG_HANDLER = "long_handler"
    """A handler has been running for ``stuck_after`` seconds (60), and there is no ``handler_timeout``.

    If it hangs, set time limits for what it awaits. If it may take that long, set ``handler_timeout``."""
    RETRYING = "retrying"
    """A record has failed ten times, or for ``stuck_after`` seconds (60). Its key waits.

    Look at its error. ``FailurePolicy`` says when it is given up, by default never."""
    NO_ROOM = "no_room"
    """Records have waited for ``stuck_after`` seconds (60) because a host of ``http_handler`` or another limited place
    is at its limit.

    Check that host: does it throttle, is it slow? ``max_per_host`` is its limit."""
    THROTTLED = "throttled"
    """A host of ``http_handler`` has refused most requests of the last minute with 429 or ``Retry-After``, or has
    requested delays for most of it. The message has the rate that is left.

    Ask for a higher limit there. A lower ``max_per_host`` avoids refused requests, but is no faster."""
    DEAD_LETTER_FAILED = "dead_letter_failed"
    """A record cannot be dead-lettered. This is tried again, and its key waits.

    Check the dead-letter topic, or the function."""
    NOT_MARKED = "not_marked"
    """Records of a queue do not run because their start markers cannot be written.

    Check the marker topic: do its brokers answer, has it as many partitions as the queue?"""
    LOCK_LOST = "lock_lost"
    """Within the last minute records of a share group have lost their locks before their handlers had ended, so they
    are delivered again, to any member.

    Do the brokers answer? If they refuse to renew locks, set the group's ``share.renew.acknowledge.enable``, or a
    ``share.record.lock.duration.ms`` that is longer than the handlers take."""
    MAX_PARKED = "max_parked"
    """Too many records of a partition wait for a retry, so none of its new records starts.

    Look at the errors of its handlers."""
    LOG_TRUNCATED = "log_truncated"
    """A partition has lost records, by an unclean leader election or because the topic was created anew. The records
    that have their offsets now are read.

    Find out what was lost: unread records among it will never be read. Reported until offsets up to the old end are
    committed again."""
    MAP_CUT = "map_cut"
    """The offset map does not fit into the commit: records completed above an offset would run again after a crash.

    Find the record or key that does not progress (``stats().longest_lane``)."""
    PRODUCER_UNREACHABLE = "producer_unreachable"
    """Nothing can be produced: no broker answers, or the login is refused.

    Check the cluster, and the options of TLS and SASL."""
    BROKER_SILENT = "broker_silent"
    """A broker has not acknowledged outputs for three seconds or more.

    Check that broker."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that needs attention."""

    kind: ProblemKind
    """Its kind, which compares equal to its text: ``problem.kind == "map_cut"``."""
    message: str
    """Describes it, with topic, partition and offset."""


_KEEP_FROM_WORK: Final = frozenset(
    {
        ProblemKind.FAILED,
        ProblemKind.FENCED,
        ProblemKind.BROKER_UNREACHABLE,
        ProblemKind.NO_LEADER,
        ProblemKind.COMMIT_REFUSED,
        ProblemKind.IN_DOUBT,
        ProblemKind.TRANSACTIONS_ABORTED,
        ProblemKind.DATABASE_AWAY,
        ProblemKind.OFFSETS_UNSTABLE,
        ProblemKind.PRODUCER_UNREACHABLE,
        ProblemKind.BROKER_SILENT,
    }
)


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot of problems."""

    running: bool
    """Whether the consumer runs."""
    problems: tuple[Problem, ...]
    joined: bool = False
    """Whether the group has assigned partitions to this member, perhaps none, and these are open."""
    paused: Paused = field(default_factory=Paused)
    """What the user has paused. A pause is no problem: neither readiness nor :attr:`healthy` depends on it."""

    @property
    def live(self) -> bool:
        """Whether a restart of the process cannot help: the run has not failed. Unreachable brokers do not count, as a
        restart does not bring them back. A blocked event loop answers no probe at all."""
        return all(problem.kind is not ProblemKind.FAILED for problem in self.problems)

    @property
    def ready(self) -> bool:
        """Whether it runs, has joined its group, and neither brokers nor permissions keep it from reading, committing
        and producing. Other problems do not count."""
        return self.running and self.joined and not any(one.kind in _KEEP_FROM_WORK for one in self.problems)

    @property
    def reason(self) -> str:
        """Why it is not ready; empty if it is."""
        if self.ready:
            return ""
        if kinds := [one.kind.value for one in self.problems if not self.running or one.kind in _KEEP_FROM_WORK]:
            return f"it has problems: {', '.join(kinds)}"
        if not self.running:
            return "it does not run: it connects, or has been stopped"
        return "not all of its partitions are open yet: it joins the group, or the group rebalances"

    @property
    def healthy(self) -> bool:
        """Whether it runs without problems."""
        return self.running and not self.problems
