"""What a consumer shows of itself."""

from __future__ import annotations

from dataclasses import dataclass

from aioparallel.records import TopicPartition

__all__ = [
    "BrokerContact",
    "BrokerOutputs",
    "Contact",
    "InFlight",
    "LongestLane",
    "PartitionStats",
    "Retrying",
    "StateStats",
    "Stats",
    "TransactionStats",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition held by this process. Offsets are the log's; counts are records."""

    topic: str
    """Its topic."""
    partition: int
    """Its number there."""
    epoch: int
    """Which assignment of this partition to this process it is; 1 the first time."""
    state: str
    """opening, open or draining."""
    committed: int | None
    """The offset the broker acknowledged last; None before the first commit."""
    position: int
    """The next offset to be fetched."""
    highest_completed: int
    """The highest offset completed; one less than where the partition started if there is none."""
    incompletes: int
    """Offsets at or above ``committed`` and below ``position`` that are not complete."""
    buffered: int
    """Read and not started yet."""
    parked: int
    """Waiting for their next attempt."""
    retries_only: bool
    """Too many of its records are parked (``max_parked``): nothing new starts until they are fewer."""
    lag: int | None
    """Records in the log that are not complete, by the last end offset seen; None before one was."""
    map_cut_at: int | None
    """When the offset map did not fit the commit: the highest offset it could speak of. Else None."""
    oldest: float | None = None
    """Seconds since the timestamp of the first incomplete record that was read: nothing before it is owed. None where
    none is, or where the log holds no timestamps."""
    lag_age: float | None = None
    """Seconds since the cluster told where the log ends; ``lag`` is from then. While its leader answers, a few seconds
    at most. None before it was told."""


@dataclass(frozen=True, slots=True)
class LongestLane:
    """The lane with the most records waiting: a hot key, or one whose head is stuck."""

    partition: TopicPartition
    """Where it is."""
    key: object
    """The lane's key: the record's key bytes, what ``order_by`` gave, or True for a whole partition."""
    length: int
    """Records in the lane, its head included."""
    head_offset: int
    """The offset of the record that the others wait for."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A record whose handler runs; of a batch the first."""

    partition: TopicPartition
    """Where it is."""
    offset: int
    """Its offset there."""
    seconds: float
    """Since its handler was started."""
    attempt: int
    """Which one it is, from 1."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """A record that has failed and waits for its next attempt."""

    partition: TopicPartition
    """Where it is."""
    offset: int
    """Its offset there."""
    seconds: float
    """Since it failed first."""
    failures: int
    """Attempts that have failed."""
    error: str
    """What the last one failed with."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records that wait, parked, until there is room for them at one place."""

    place: str
    """Which: of ``http_handler`` the host, as ``https://host:port``."""
    records: int
    """How many."""
    seconds: float
    """For how long the first of them has been waiting."""
    opens_in: float
    """Seconds of delay that the place has requested; 0: none, there is no room."""


@dataclass(frozen=True, slots=True)
class BrokerOutputs:
    """Outputs (dead letters and records for retry topics among them) that one broker has not acknowledged yet."""

    broker: int | None
    """Its node id, of the leader of their partitions; None where no leader is known, or no such topic."""
    address: str
    """``host:port``; empty where it is not known."""
    outputs: int
    """All that are not acknowledged."""
    waiting: int
    """Those of them that are in no batch yet."""
    batches: int
    """Under way: sent and not answered, or to be sent again; one for each partition at most."""
    oldest: float
    """Seconds since the oldest of them was handed over; at ``delivery_timeout`` it fails."""
    silent: float | None
    """Seconds that the broker has owed an answer, when these are three or more; None while it answers."""


@dataclass(frozen=True, slots=True)
class BrokerContact:
    """Whether one broker answers what the consumer asks it: for records, heartbeats, commits, and where logs end."""

    broker: int | None
    """Its node id."""
    address: str
    """``host:port``."""
    answered: float | None
    """Seconds since it answered anything; None: it never did."""
    owes: float | None
    """Seconds for which it has left something unanswered, or could not be reached; None while it owes nothing. A fetch
    that waits for records is owed, too, for half a second in general."""
    reason: str
    """What the last request to it failed with; empty while it answers."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What is heard of the cluster."""

    fetch: float | None = None
    """Seconds since a fetch was answered; None: none was yet. Nothing is fetched while the buffer is full."""
    heartbeat: float | None = None
    """Seconds since the coordinator of the group answered a heartbeat, or anything else about the group."""
    commit: float | None = None
    """Seconds since a commit was answered. None is sent while there is nothing new."""
    brokers: tuple[BrokerContact, ...] = ()
    """Those that were asked for anything, of those that the cluster has."""
    leaderless: tuple[TopicPartition, ...] = ()
    """Assigned partitions that no broker leads."""
    missing: tuple[str, ...] = ()
    """Topics that are read by their names, and that the cluster has not had for five seconds or more."""


@dataclass(frozen=True, slots=True)
class TransactionStats:
    """Kafka transactions since the start of the run, and what waits for the next one."""

    committed: int
    """Transactions whose end the brokers have acknowledged."""
    aborted: int
    """Those that were not committed: nothing of them is visible, their outputs went into the next one."""
    aborted_for: dict[str, int]
    """Why, and how often."""
    fenced: int
    """How often partitions were dropped because somebody else used the transactional id, or had the partition."""
    refused: int
    """Records whose outputs the brokers refused: put away, skipped, or the end of the run, as ``failures`` says."""
    seconds: float | None
    """From the cut to the acknowledged end, of the last one; None before the first."""
    longest: float | None
    """The same, the longest of the last hundred."""
    phase: str
    """What goes on: "idle", "sending", "offsets", "ending", "aborting", "doubt", "verifying", "fenced" or "new"."""
    waiting_outputs: int
    """Of records that are complete, and of no committed transaction."""
    waiting_bytes: int
    """Their bytes, with 256 for each."""
    transactional_id: str
    """What the cluster knows this member by."""

    @property
    def in_doubt(self) -> bool:
        """Whether it is being found out what became of a transaction."""
        return self.phase in ("doubt", "verifying")


@dataclass(frozen=True, slots=True)
class StateStats:
    """The state of keys, of the partitions that this member holds."""

    keys: int
    """That have a value."""
    restoring: dict[str, float]
    """Partitions that are being restored, and which part of what is to be read was, 0 to 1."""
    restored: int
    """Partitions that were restored since the start of the run."""
    replayed: int
    """Records that were read again for that, without their handlers."""
    snapshots: int
    """Full snapshots that were written since the start of the run."""
    unapplied: int
    """Offsets that are kept because their records are complete and not in the state: dead-lettered or skipped."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot; counts are records since the start of the run.

    ``admitted == buffered + parked + in_flight + producing + ended + dropped`` at every moment.
    """

    admitted: int
    """Read, and not complete by the offset map."""
    buffered: int
    """Read and not started yet."""
    buffered_bytes: int
    """Bytes of their keys, values and headers."""
    parked: int
    """Waiting for their next attempt."""
    in_flight: int
    """A handler is running for them."""
    producing: int
    """The handler has ended, what it returned (or the dead letter) is not acknowledged yet."""
    succeeded: int
    """Their handler has returned, and what it returned is acknowledged; in transactions, waits for the next one."""
    dead_lettered: int
    """In the dead-letter topic or a retry topic, or put away by a dead-letter function."""
    skipped: int
    """Completed without success, as ``give_up="skip"`` or a retry function said."""
    dropped: int
    """Given up unfinished because their partition was given away; its next owner runs them."""
    failed_attempts: int
    """Calls of a handler that failed, whatever became of the record."""
    ready_lanes: int
    """Lanes whose next record may start."""
    lanes: int
    """Lanes with a record in them."""
    lag: int | None
    """Sum over partitions; None while one of them is unknown, or nothing is assigned yet."""
    intake: str
    """What the fetcher does: "fetching", "enough ready", "full: max_buffered reached", "full:
    max_buffered_bytes reached", "at the end" (everything read that ``until="end"`` asks for), "paused", "stopped",
    "opening", "held" (where nothing can be read) or "nothing assigned". Full while few lanes are ready means that
    ``longest_lane`` sets the pace."""
    longest_lane: LongestLane | None
    """None while no lane has more than one record."""
    commits: int
    """Commit requests acknowledged for every partition in them."""
    failed_commits: int
    """Commits of one partition that the broker did not take."""
    offset_resets: int
    """Positions that were outside the log and moved into it."""
    unreadable_maps: int
    """Committed texts that were no offset map."""
    log_truncations: int
    """Logs that had lost records of which something was known: an unclean leader election, or a topic made anew."""
    cut_maps: int
    """Maps that did not fit and were cut."""
    metadata_limit: int
    """Characters of commit metadata the broker takes, as far as is known."""
    partitions: tuple[PartitionStats, ...]
    """Each partition that this process holds."""
    outputs: tuple[BrokerOutputs, ...] = ()
    """What is not acknowledged, by broker; those with nothing outstanding are left out."""
    oldest_in_flight: InFlight | None = None
    """Whose handler has been running for longest; None while none runs."""
    longest_retrying: Retrying | None = None
    """What has been failing for longest, of what waits for its next attempt."""
    waiting: tuple[Waiting, ...] = ()
    """Where records wait for room, at a host say; those first that wait for longest. They are among those parked."""
    contact: Contact = Contact()
    """What is heard of the cluster, and since when not."""
    lag_age: float | None = None
    """Seconds since the oldest part of ``lag`` was told, see there; None while ``lag`` is."""
    copies: int = 0
    """Records that were not handled because they were before, as ``deduplicate`` says. They are not among those
    admitted."""
    transactions: TransactionStats | None = None
    """Where positions are committed in transactions, ``commits=Transactions(...)``; else None."""
    state: StateStats | None = None
    """The state of keys, where ``state`` asks for one; else None."""
    released: int = 0
    """Records of a queue that were left to be delivered again."""
    cut_letters: int = 0
    """Of those dead-lettered, the letters that are without a part of their record, most often its value, because their
    topic does not take them whole: ``FailurePolicy(dead_letter_too_large=)``."""
    skipped_batches: int = 0
    """Batches that could not be read and were passed over, as ``skip_unreadable`` said."""
    positions_in: str = "the group"
    """Where positions are read from: the group's committed offsets, or the table of a store. What else is told is for
    tools that show lag."""

    @property
    def ended(self) -> int:
        """Records with an outcome."""
        return self.succeeded + self.dead_lettered + self.skipped + self.released
