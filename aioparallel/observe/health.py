"""What is wrong with a running consumer, in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Health", "Problem", "ProblemKind"]


class ProblemKind(StrEnum):
    """What can be wrong, the most pressing first. Each says what it is, and then what to do."""

    FAILED = "failed"
    """The run has ended with an error, which the message names.

    Mend its cause and start again."""
    RESTARTING = "restarting"
    """The run has ended with an error, or could not begin, and ``aioparallel.web`` starts it again by itself.

    Look at the error. If it stays, no restart mends it."""
    FENCED = "fenced"
    """The group refuses this member's commits.

    Nothing, it joins again. Where another process has its ``group_instance_id``, it does not: its run ends."""
    BROKER_UNREACHABLE = "broker_unreachable"
    """A broker has not answered the consumer for five seconds or more, cannot be reached, or refuses its login.

    Look at that broker, or at what it refuses: the message says so. Records that are there already go on; what is not
    committed runs again after a restart."""
    NO_LEADER = "no_leader"
    """No broker leads a partition, so nothing can be read of it.

    Look at the brokers that have it."""
    STALLED = "stalled"
    """A partition has more to read, and nothing of it came for ``stalled_after`` seconds, whatever the cause.

    Look at the brokers that have it, and at the log. Start the consumer anew if only that helps, and report it."""
    OPEN_TRANSACTION = "open_transaction"
    """Another producer's transaction is open, so what is behind it cannot be read under ``read_committed``. Nothing of
    the partition came for ``stalled_after`` seconds; its lag does not count what is behind the transaction.

    Find the producer. ``kafka-transactions.sh --bootstrap-server ... find-hanging`` tells of a transaction that hangs,
    and ``abort`` ends it."""
    UNREADABLE = "unreadable"
    """A batch of a partition cannot be read: its checksum is wrong, its codec is unknown, or its structure is broken.
    The partition is held there, and tried anew twice a minute; the others go on.

    Let a replica lead that has it whole. ``skip_unreadable`` passes over just the batch that the message names."""
    TOPIC_GONE = "topic_gone"
    """A topic that is read by its name is not there any more, so nothing is read of it. The others go on.

    Make it again, and it is read; or start the consumer without it."""
    COMMIT_REFUSED = "commit_refused"
    """The broker refuses the commits of a partition: not authorised, or the topic is gone.

    Give the user Read on group and topic. Records go on, and run again after a restart."""
    IN_DOUBT = "in_doubt"
    """Nobody has said for five seconds or more what became of a transaction, so nothing is committed.

    Look at the brokers that the message names: it goes on by itself when they answer."""
    TRANSACTIONS_ABORTED = "transactions_aborted"
    """One transaction after the other is aborted, so nothing is committed. Their outputs are kept.

    The message says why."""
    OUTPUTS_WAIT = "outputs_wait"
    """A transaction has been waiting for three seconds or more until its outputs are written.

    Look at the topic or the broker that the message names; if it is slow for good, transactions get smaller."""
    OUT_OF_RESOURCES = "out_of_resources"
    """Within the last ten seconds a handler failed because the process has no more file descriptors, memory, threads
    or disk. Its record waits, which is no failure of it.

    Raise the limit that the message names (``ulimit -n``, the memory of the container), or have ``max_concurrency``
    lower."""
    DATABASE_AWAY = "database_away"
    """The database of a ``SqlStore`` has not done what it was asked within the last ten seconds, or refuses it.

    The message says why. Records are tried again each second, which is no failure of them; nothing of them is done."""
    OFFSETS_UNSTABLE = "offsets_unstable"
    """A partition stays closed, because its offset is part of a transaction that has not ended, for longer than the
    brokers let one be.

    Does a member run with a longer ``transaction_timeout``? ``kafka-transactions.sh`` finds and ends one that hangs."""
    EXTENSION = "extension"
    """An extension of the user's own reports this.

    Its author knows."""
    SEEN_UNSAVED = "seen_unsaved"
    """``Deduplicate`` cannot write what was seen of a partition, so nothing of it is committed.

    Look at its topic: may the user write there, do its brokers answer?"""
    STATE_WAITS = "state_waits"
    """A partition stays closed, because the state of its keys cannot be restored for now.

    The message says what it waits for. It goes on by itself."""
    STATE_UNSAVED = "state_unsaved"
    """The state of a partition's keys cannot be written: its increment, so that nothing is committed, or a full
    snapshot, so that a restore takes longer and longer.

    Look at the topics of ``State``: may the user write there, do their brokers answer?"""
    NO_SOURCE = "no_source"
    """Records come that do not say what they were made of, so ``Deduplicate`` cannot know their copies.

    Have the stage before write their headers."""
    LOOP_HELD = "loop_held"
    """In the last minute a handler, or something else, held the event loop: nothing else ran, no heartbeat was sent.

    Let it await what takes long, or move that into a plain function for ``in_threads()``; the log has the line it stood
    at. Holds of 0.25 s and more; shorter ones are in the log only."""
    HANDLER_STUCK = "handler_stuck"
    """A handler goes on after it was cancelled.

    Let ``CancelledError`` pass in it; give what it does in a thread a time limit there."""
    LONG_HANDLER = "long_handler"
    """A handler has been running for a minute or more, and there is no ``handler_timeout``.

    If it hangs, give what it waits for a time limit. If it may take that long, say so: set ``handler_timeout``."""
    RETRYING = "retrying"
    """A record has failed ten times, or for a minute. Its key waits.

    Look at what it fails with; ``FailurePolicy`` says when it is given up, by default never."""
    NO_ROOM = "no_room"
    """Records have been waiting for a minute or more until there is room for them, at a host of ``http_handler`` say.

    Look at that host: does it throttle, is it slow? ``max_per_host`` is how much it is asked at once."""
    DEAD_LETTER_FAILED = "dead_letter_failed"
    """A record cannot be put away. It is tried again, its key waits.

    Look at the dead-letter topic, or the function."""
    NOT_MARKED = "not_marked"
    """Records of a queue do not run, because their start markers cannot be written.

    Look at the marker topic: do its brokers answer, has it as many partitions as the queue?"""
    MAX_PARKED = "max_parked"
    """Too many records of a partition wait for a retry. Nothing new of it starts.

    Look at what its handlers fail with."""
    LOG_TRUNCATED = "log_truncated"
    """A partition has lost records: an unclean leader election, or the topic was made anew. The records that have their
    offsets now are read.

    Find out what the lost records were: nothing that was not read of them will be. Told until all that was lost is
    committed anew."""
    MAP_CUT = "map_cut"
    """The offset map does not fit the commit: what is complete above an offset would run again after a crash.

    Find the record or key that stands (``stats().longest_lane``)."""
    PRODUCER_UNREACHABLE = "producer_unreachable"
    """Nothing can be sent: no broker answers, or the login is refused.

    Look at the cluster, and at the options of TLS and SASL."""
    BROKER_SILENT = "broker_silent"
    """A broker has owed an answer to outputs for three seconds or more.

    Look at that broker."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that somebody should look at."""

    kind: ProblemKind
    """What it is; equal to its text: ``problem.kind == "map_cut"``."""
    message: str
    """What it is, with topic, partition and offset."""


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
    """A snapshot."""

    running: bool
    """Whether records are read and run."""
    problems: tuple[Problem, ...]
    joined: bool = False
    """Whether the group has said which partitions are this member's, perhaps none, and these are open."""

    @property
    def live(self) -> bool:
        """Whether there is anything to hope for from this process: its run has not failed. A broker that is gone makes
        it no less live, for a restart would not bring that back. What answers this at all turns its event loop."""
        return all(problem.kind is not ProblemKind.FAILED for problem in self.problems)

    @property
    def ready(self) -> bool:
        """Whether it does its work: it runs, has joined its group, and neither the brokers nor its rights keep it from
        reading, committing and producing. Other problems are for people to look at."""
        return self.running and self.joined and not any(one.kind in _KEEP_FROM_WORK for one in self.problems)

    @property
    def healthy(self) -> bool:
        """Running, and nothing to look at."""
        return self.running and not self.problems
