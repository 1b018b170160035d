"""Statistics of a consumer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from aioparallel.records.record import TopicPartition

__all__ = [
    "BrokerContact",
    "BrokerOutputs",
    "Contact",
    "InFlight",
    "LongestLane",
    "MemberStats",
    "PartitionCounts",
    "PartitionStats",
    "Paused",
    "Retrying",
    "ShareStats",
    "StateStats",
    "Stats",
    "TransactionStats",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition assigned to this process. Offsets are Kafka's; counts are records."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    epoch: int
    """Counts the assignments of this partition to this process, from 1."""
    state: str
    """"opening", "open" or "draining"."""
    committed: int | None
    """The last offset whose commit the broker acknowledged; None before the first commit."""
    position: int
    """The next offset to fetch."""
    highest_completed: int
    """The highest completed offset; if there is none, one less than where the partition started."""
    incompletes: int
    """Offsets at or above ``committed`` and below ``position`` that are not complete."""
    buffered: int
    """Read and not started."""
    parked: int
    """Wait for their next attempt."""
    retries_only: bool
    """Too many records are parked (``max_parked``): new ones start only when there are fewer."""
    lag: int | None
    """Records in the log that are not complete, by the last known end offset; None while that is unknown."""
    map_cut_at: int | None
    """If the offset map did not fit into the commit: the last offset that it covers. Else None."""
    oldest: float | None = None
    """Seconds since the timestamp of the first incomplete record that was read. None without incomplete records or
    without timestamps in the log."""
    lag_age: float | None = None
    """Seconds since the end offset for ``lag`` was received: a few at most while the partition's leader answers. None
    before the first."""
    in_flight: int = 0
    """Their handler runs."""
    producing: int = 0
    """Their handler has ended; its outputs or the dead letter are not acknowledged yet."""
    paused: bool = False
    """It is paused, itself or with its topic or the whole consumer. Paused keys do not count."""
    map_characters: int = 0
    """Characters of the offset map in the last acknowledged commit; 0 without a map. ``Stats.metadata_limit`` is the
    most."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Records of one partition since the start of the run, in all its assignments to this process."""

    topic: str
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    admitted: int
    """Records read, without those that the offset map marks as complete."""
    succeeded: int
    """Their handler has returned and its outputs are acknowledged; with transactions, they wait for the next one."""
    dead_lettered: int
    """Written to the dead-letter topic or a retry topic, or passed to a dead-letter function."""
    skipped: int
    """Completed without success by ``give_up="skip"`` or a retry function."""
    released: int
    """Records of a queue that were left to be delivered again."""
    dropped: int
    """Dropped unfinished because the partition was revoked or lost; also those whose handler still runs."""
    failed_attempts: int
    """Handler calls that failed, whatever became of the record."""


@dataclass(frozen=True, slots=True)
class LongestLane:
    """The lane with the most waiting records: a hot key, or one whose first record is stuck."""

    partition: TopicPartition
    """Its partition."""
    key: object
    """The lane's key: the record's key bytes, the result of ``order_by``, or True for a whole partition."""
    length: int
    """Records in the lane, including the first."""
    head_offset: int
    """The offset of the first record, for which the others wait."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A record whose handler runs; of a batch the first one."""

    partition: TopicPartition
    """Its partition."""
    offset: int
    """Its offset."""
    seconds: float
    """Seconds since its handler started."""
    attempt: int
    """The number of this attempt, from 1."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """A failed record that waits for its next attempt."""

    partition: TopicPartition
    """Its partition."""
    offset: int
    """Its offset."""
    seconds: float
    """Seconds since its first failure."""
    failures: int
    """Number of failed attempts."""
    error: str
    """The error of the last attempt."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records that wait parked until a limited place, such as a host of ``http_handler``, has capacity."""

    place: str
    """Its name; for ``http_handler`` the host as ``https://host:port``."""
    records: int
    """Number of waiting records."""
    seconds: float
    """Seconds that the first of them has waited."""
    opens_in: float
    """Remaining seconds of a delay that the place has requested; 0: it is at its limit."""


@dataclass(frozen=True, slots=True)
class BrokerOutputs:
    """Outputs, including dead letters and records for retry topics, that a broker has not acknowledged yet."""

    broker: int | None
    """Node id of their partitions' leader; None if the leader or the topic is unknown."""
    address: str
    """``host:port``; empty if unknown."""
    outputs: int
    """Outputs that are not acknowledged."""
    waiting: int
    """Of these, outputs that are in no batch yet."""
    batches: int
    """Batches in flight or to be sent again; at most one for each partition."""
    oldest: float
    """Seconds since the oldest output was passed to the producer; at ``delivery_timeout`` it fails."""
    silent: float | None
    """Seconds that the broker has owed a response, from three on; else None."""


@dataclass(frozen=True, slots=True)
class BrokerContact:
    """Whether a broker answers requests for records, heartbeats, commits and end offsets."""

    broker: int | None
    """Its node id."""
    address: str
    """``host:port``."""
    answered: float | None
    """Seconds since its last response; None: there was none."""
    owes: float | None
    """Seconds that a request has been unanswered, or that the broker could not be reached; else None. A fetch that
    waits for records counts as unanswered, usually for up to half a second."""
    reason: str
    """The error of the last request; empty while it answers."""


@dataclass(frozen=True, slots=True)
class Contact:
    """When the cluster last answered, and what is missing."""

    fetch: float | None = None
    """Seconds since the last response to a fetch; None: there was none. While the buffer is full nothing is fetched."""
    heartbeat: float | None = None
    """Seconds since the last response of the group coordinator to a heartbeat or another group request."""
    commit: float | None = None
    """Seconds since the last response to a commit. Without progress nothing is committed."""
    brokers: tuple[BrokerContact, ...] = ()
    """Current brokers of the cluster that have got requests."""
    leaderless: tuple[TopicPartition, ...] = ()
    """Assigned partitions without a leader."""
    missing: tuple[str, ...] = ()
    """Topics given by name that have been missing for five seconds or more."""
    failing: tuple[TopicPartition, ...] = ()
    """In a share group: assigned partitions of which nothing could be acquired the last time, because of an error."""


@dataclass(frozen=True, slots=True)
class TransactionStats:
    """Kafka transactions since the start of the run, and outputs for the next one."""

    committed: int
    """Transactions whose commit was acknowledged."""
    aborted: int
    """Transactions that were not committed. Nothing of them is visible; their outputs went into the next one."""
    aborted_for: dict[str, int]
    """Number of aborted transactions by reason."""
    fenced: int
    """How often partitions were dropped because another member used the transactional id or had the partition."""
    refused: int
    """Records whose outputs the brokers refused; ``failures`` says what became of them."""
    seconds: float | None
    """Duration of the last transaction, from closing its batch to the acknowledged end; None before the first."""
    longest: float | None
    """The longest duration of the last hundred."""
    phase: str
    """The current phase: "idle", "sending", "offsets", "ending", "aborting", "doubt", "verifying", "fenced" or
    "new"."""
    waiting_outputs: int
    """Outputs of complete records that belong to no committed transaction yet."""
    waiting_bytes: int
    """Their bytes, plus 256 for each."""
    transactional_id: str
    """The transactional id of this member."""

    @property
    def in_doubt(self) -> bool:
        """Whether it is not known yet if a transaction was committed."""
        return self.phase in ("doubt", "verifying")


@dataclass(frozen=True, slots=True)
class StateStats:
    """The state of keys in the partitions of this member."""

    keys: int
    """Keys with a value."""
    restoring: dict[str, float]
    """Partitions being restored, with the part that was read, 0 to 1."""
    restored: int
    """Partitions restored since the start of the run."""
    replayed: int
    """Records that were read again for a restore, without their handlers."""
    snapshots: int
    """Full snapshots written since the start of the run."""
    unapplied: int
    """Offsets that are kept because their records are complete and not in the state: dead-lettered or skipped."""


@dataclass(frozen=True, slots=True)
class ShareStats:
    """A member of a share group: its locked records, and acknowledgements since the start of the run."""

    locked: int
    """Records and unreadable offsets that are locked for this member."""
    unanswered: int
    """Acknowledgements that the brokers have not answered yet."""
    accepted: int
    """Records that are done, as the brokers know."""
    released: int
    """Records that were released to be delivered again, as the brokers know."""
    rejected: int
    """Records that are not delivered again although they failed, as the brokers know."""
    renewed: int
    """Locks that have begun anew."""
    released_unbegun: int
    """Records that were released before their first attempt: at a pause, at the stop, or because they could not begin
    before their lock ended. Each delivery counts towards the group's limit."""
    lost: int
    """Records whose lock has ended, or could not be renewed, while their handler ran or their outputs were sent, or
    just before their handler was called. Handlers that run are cancelled, so ``late`` does not count these."""
    given_up: int
    """Records that were released in the group's last delivery, or whose lock ended in it: the group delivers them no
    more. **They are lost**, unless the brokers write dead letters."""
    late: int
    """Records that were handled, but acknowledged after their lock had ended: ``on_late``."""
    unknown: int
    """Records that were handled and whose acknowledgement was not answered: they may be delivered again."""
    unreadable: int
    """Offsets that could not be read, counted at each delivery."""


@dataclass(frozen=True, slots=True)
class MemberStats:
    """This process as a member of a group."""

    group: str
    """Name of the group; of a ``PriorityConsumer`` the number of the priority."""
    member_id: str
    """Its id there, as ``aioparallel groups show --json`` names it."""
    generation: int
    """The generation of its last assignment; with ``group_protocol="consumer"`` its member epoch. Each rebalance raises
    it."""


@dataclass(frozen=True, slots=True)
class Paused:
    """What the user has paused. It is false if nothing is."""

    everything: bool = False
    """Whether :meth:`ParallelConsumer.pause` was called without arguments."""
    topics: tuple[str, ...] = ()
    """Paused topics."""
    partitions: tuple[TopicPartition, ...] = ()
    """Partitions that are paused one by one, whether or not this process has them."""
    keys: dict[str, tuple[Hashable, ...]] = field(default_factory=dict)
    """Paused keys by topic."""

    def __bool__(self) -> bool:
        return self.everything or bool(self.topics or self.partitions or self.keys)

    def __str__(self) -> str:
        """What is paused, in words. Of keys only the number."""
        keys = [f"{len(keys)} key{'s' if len(keys) > 1 else ''} of {topic}" for topic, keys in self.keys.items()]
        found = [*(["everything"] if self.everything else []), *self.topics, *map(str, self.partitions), *keys]
        return ", ".join(found) or "nothing"


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot; counts are records since the start of the run.

    ``admitted == buffered + parked + in_flight + producing + ended + dropped`` at every moment.
    """

    admitted: int
    """Records read, without those that the offset map marks as complete."""
    buffered: int
    """Read and not started."""
    buffered_bytes: int
    """Bytes of their keys, values and headers."""
    parked: int
    """Wait for their next attempt."""
    in_flight: int
    """Their handler runs."""
    producing: int
    """Their handler has ended; its outputs or the dead letter are not acknowledged yet."""
    succeeded: int
    """Their handler has returned and its outputs are acknowledged; with transactions, they wait for the next one."""
    dead_lettered: int
    """Written to the dead-letter topic or a retry topic, or passed to a dead-letter function."""
    skipped: int
    """Completed without success by ``give_up="skip"`` or a retry function."""
    dropped: int
    """Dropped unfinished because their partition was revoked or lost; its next owner runs them."""
    failed_attempts: int
    """Handler calls that failed, whatever became of the record."""
    ready_lanes: int
    """Lanes whose first record may start."""
    lanes: int
    """Lanes with records."""
    lag: int | None
    """Sum over partitions; None while one is unknown or nothing is assigned."""
    intake: str
    """What the fetcher does: "fetching", "enough ready", "full: max_buffered reached", "full: max_buffered_bytes
    reached", "at the end" (all records for ``until="end"`` were read), "paused" (all that could be read is paused),
    "stopped", "opening", "held" (nothing can be read) or "nothing assigned". If it is full while few lanes are ready,
    ``longest_lane`` limits the rate."""
    longest_lane: LongestLane | None
    """None while no lane has more than one record."""
    commits: int
    """Commit requests acknowledged for all of their partitions."""
    failed_commits: int
    """Commits of single partitions that the broker did not accept."""
    offset_resets: int
    """Positions outside the log that were moved into it."""
    unreadable_maps: int
    """Committed metadata that was not an offset map."""
    log_truncations: int
    """Logs that have lost known records, by an unclean leader election or because the topic was created anew."""
    cut_maps: int
    """Offset maps that did not fit and were cut."""
    metadata_limit: int
    """Characters of commit metadata that the broker accepts, as far as known."""
    partitions: tuple[PartitionStats, ...]
    """The assigned partitions."""
    outputs: tuple[BrokerOutputs, ...] = ()
    """Unacknowledged outputs by broker; brokers without any are left out."""
    oldest_in_flight: InFlight | None = None
    """The record whose handler has run longest; None while none runs."""
    longest_retrying: Retrying | None = None
    """Of the records that wait for their next attempt, the one that has been failing longest."""
    waiting: tuple[Waiting, ...] = ()
    """Parked records that wait for limited places such as hosts; the longest wait first."""
    contact: Contact = Contact()
    """When the cluster last answered."""
    lag_age: float | None = None
    """The largest ``lag_age`` of the partitions; None while ``lag`` is."""
    copies: int = 0
    """Records that ``deduplicate`` recognised as handled before. They are not counted in ``admitted``."""
    transactions: TransactionStats | None = None
    """With ``commits=Transactions(...)``, once the run has begun; else None."""
    state: StateStats | None = None
    """With ``state``; else None."""
    share: ShareStats | None = None
    """Of a ``ShareConsumer``, once the run has begun; else None."""
    released: int = 0
    """Records of a queue that were left to be delivered again."""
    cut_letters: int = 0
    """Dead letters that lack a part of their record, most often its value, because their topic does not accept it
    whole: ``FailurePolicy(dead_letter_too_large=)``."""
    skipped_batches: int = 0
    """Unreadable batches that were skipped by ``skip_unreadable``."""
    counts: tuple[PartitionCounts, ...] = ()
    """Counts of each partition that the consumer has had since the start of the run."""
    maps_written: int = 0
    """Offset maps written for commits."""
    map_seconds: float = 0.0
    """Seconds that this took."""
    blockages: int = 0
    """How often handlers or other code blocked the event loop, for about 0.1 s or more, also for other consumers of
    this loop."""
    blocked_seconds: float = 0.0
    """Seconds that this took."""
    paused: Paused = field(default_factory=Paused)
    """What is paused. Its records that were read are counted in ``buffered`` and ``parked``."""
    max_concurrency: int = 0
    """How many handlers may run at once now."""
    positions_in: str = "the group"
    """Where positions are read from: the group's committed offsets, or the table of a store. Then the group's offsets
    only serve tools that show lag."""
    members: tuple[MemberStats, ...] = ()
    """This process as a member of its group, from the first assignment on; a ``PriorityConsumer`` has a group for each
    priority. Empty in a share group."""

    @property
    def giving_away(self) -> tuple[TopicPartition, ...]:
        """Partitions that this member is giving up: nothing of them starts, handlers end, then there is a last commit.
        In a rebalance with ``group_protocol="consumer"`` these are those that move, else all."""
        return tuple(TopicPartition(one.topic, one.partition) for one in self.partitions if one.state == "draining")

    @property
    def ended(self) -> int:
        """Records with an outcome."""
        return self.succeeded + self.dead_lettered + self.skipped + self.released
