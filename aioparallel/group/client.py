"""The interface that a Kafka client must implement.

What a client promises:

* It raises nothing for temporary problems (a leader moves, a coordinator is loading, a connection drops): it logs them,
  backs off and tries again. It raises a :class:`~aioparallel.ClientError` for all others.
* Every call with a ``timeout`` (seconds) returns or raises within that time, whatever the broker does. When the time is
  up it raises :class:`TimeoutError`.
* ``fetch`` may be cancelled at any moment without losing records.
* Everything happens on the event loop that called ``start``.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from aioparallel.observe.stats import Contact
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import Record, TopicPartition

__all__ = [
    "REQUEST_PAUSE",
    "REQUEST_TIMEOUT",
    "Client",
    "CommitFault",
    "Committed",
    "Fetched",
    "Generation",
    "RebalanceListener",
    "Span",
]


# Seconds for one request to the cluster while an assignment opens or is reset, and seconds between two tries.
REQUEST_TIMEOUT: Final = 10.0
REQUEST_PAUSE: Final = 0.5


class Generation(NamedTuple):
    """A member in one generation of its group. The broker fences commits with it."""

    id: int
    """The group's generation (classic protocol), or the member's epoch (new protocol)."""
    member_id: str
    group: str = ""
    """The group, if one client is a member of several."""


class Committed(NamedTuple):
    """A committed offset (the next one to read) and the metadata text stored with it."""

    offset: int
    metadata: str
    leader_epoch: int = -1
    """The leader epoch of the last record that offset and map cover, or a later epoch; -1: unknown."""
    topic_id: bytes = b""
    """The id of the topic. The broker refuses a commit for another topic of the same name. Empty: unknown."""


class CommitFault(enum.Enum):
    """Why the commit of one partition failed."""

    RETRIABLE = "retriable"
    """It may succeed later, in this generation or in the next one: coordinator moved or loading, no answer, a rebalance
    began, or (new protocol) the member's epoch has gone up, which the client learns of at once."""
    METADATA_TOO_LARGE = "metadata too large"
    """The text is longer than the broker's ``offset.metadata.max.bytes``."""
    FENCED = "fenced"
    """The generation or the member is not valid any more: this partition may have another owner now."""
    REFUSED = "refused"
    """It cannot succeed: not authorised, or the topic is deleted."""
    HELD = "held"
    """It was not tried: an output of one of its records was refused, and the record is not dead-lettered yet."""


class Fetched(NamedTuple):
    """What one fetch took from one partition.

    ``records`` ascend by offset, with the gaps of the log. ``next_offset`` is the position after them: every offset
    below it that was not delivered does not exist for this reader (compacted, a transaction marker, aborted).
    ``records`` may be empty while ``next_offset`` has moved.
    """

    partition: TopicPartition
    records: Sequence[Record]
    next_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """Pairs of first offset and leader epoch, both ascending. The first may begin below the records."""
    topic_id: bytes = b""
    """The id of the topic; empty: unknown. A new id means that the topic was deleted and created again."""
    leader_changed: bool = False
    """Nothing was read, but the partition has a new leader, which may not have what was read before."""


class Span(NamedTuple):
    """Offsets from ``start`` to ``end``, without ``end``."""

    start: int
    end: int


class RebalanceListener(Protocol):
    """Reacts to changes of the assignment. Called on the event loop.

    There are never two calls at a time for one group, with two exceptions in the new protocol: while ``revoked`` runs,
    ``assigned`` may be called with no partitions, and ``lost``.

    In the classic protocol ``revoked`` takes all partitions of the member (eager) or those that move (cooperative). In
    the new one (KIP-848) it takes only those that move; all others are fetched and committed meanwhile.
    """

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """These partitions were assigned in addition to those already held. ``generation`` is the member's new one, and
        from now on also that of the kept partitions.

        It is called with no partitions if only the generation has changed. In the new protocol also when partitions
        were given away, once the coordinator has acknowledged that.

        It must be quick: the member may send no heartbeats meanwhile. Nothing is fetched for the new partitions until
        :meth:`Client.seek`.
        """

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are being revoked. Until this returns, commits in their generation are still accepted.

        The client waits for it, and sends heartbeats meanwhile. Then the member joins again (classic), or tells the
        coordinator at once what it still has (new).
        """

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are gone already (session expired, fenced): no commit is possible. May be empty.

        In the new protocol they are all that the member has. A ``revoked`` that still runs goes on; its partitions are
        gone as well, but need not be in ``partitions``. Then this is called even without any. A client that is a member
        of several groups does pass them.
        """

    def fenced(self, error: InstanceFenced) -> None:
        """Another process has joined with this member's ``group_instance_id``: this one is no member any more and does
        not join again.

        Its partitions were reported as ``lost`` before, except those whose ``revoked`` still runs. This is called once,
        and no other call follows.
        """


class Client(Protocol):
    """A Kafka consumer, a member of one group. The docstring of this module says what it promises."""

    @property
    def assigns_in_steps(self) -> bool:
        """Whether the group may have more partitions for this member than the last assignment (new protocol): those
        that others are giving away, or that a member had that has crashed. In the classic protocol a rebalance waits
        for all of them."""

    async def start(self, timeout: float) -> None:
        """Connect. Raises BrokerUnreachable or NotAuthorized within ``timeout`` seconds."""

    async def stop(self, timeout: float) -> None:
        """Leave the group and close all connections, within ``timeout`` seconds. Never raises, and does not call the
        listener. May be called even if ``start`` failed."""

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics, or of those whose whole name matches, as the cluster knows them now.

        Creates no topic. Topics that do not exist are not in the result.
        """

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Join the group; the listener gets the assignment later. A pattern also matches topics created later."""

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Take at most ``quotas[p]`` records from each partition ``p``, and ``most`` in all, in one walk over the
        fetched data. Partitions that ``most`` leaves out have their turn in the next walks.

        Waits until there is data for one of them or :meth:`wake` is called; then the list may be empty. Partitions
        without a quota lose nothing. Those no longer assigned are ignored.

        Raises OffsetOutOfRange if the position of a partition in ``quotas`` is outside the log. Raises FetchFailed if
        the data there cannot be read (UnreadableBatch if its offsets are known). These errors come after all readable
        data was returned, and again until :meth:`seek`, which fetches anew. Also raises NotAuthorized, InstanceFenced
        and ClientError.

        A record that cannot be decoded, in a readable batch, is returned like any other but marked
        (:func:`~aioparallel.records.history.make_undecodable`).
        """

    def wake(self) -> None:
        """Let a waiting :meth:`fetch` return now. If none waits, the next one returns without waiting."""

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Send one OffsetCommit request, one attempt, fenced with ``generation``. Returns a result for each requested
        partition; None means acknowledged. Without an answer each is RETRIABLE.

        If the broker fences the current generation of the member, the client must leave it: it calls ``lost`` of the
        listener at once, and joins again. (In the classic protocol it does not while it is giving partitions away: it
        joins again anyway.) If another process has the ``group_instance_id``, it calls ``fenced`` as well and does not
        join again.
        """

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """Report that the group has fenced this generation in another request, such as a transaction's. The client
        reacts as in :meth:`commit`. ``instance_fenced``: the error was FENCED_INSTANCE_ID.

        In the new protocol the epoch may merely be old. So the client asks the coordinator first: if the epoch has gone
        up, ``assigned`` says so; if it has not, the member joins again, and all its partitions are lost.
        """

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """Return the group's committed offsets and texts. Partitions without one are not in the result."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch this assigned partition from ``offset`` on. After an assignment this starts the fetching. Ignored for a
        partition that is not assigned any more."""

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Return the first offset that each log holds."""

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Return the offset that the next record will get; under read_committed, the last stable offset."""

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Return the high watermark: the offset of the next record, after those of open transactions as well."""

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Return where the records of each leader epoch, and of all earlier ones, end in the log
        (OffsetsForLeaderEpoch, KIP-320).

        For epoch -1, and for brokers that do not support this, it is the end of the log. If the log never had that
        leader, it is the beginning of the log. Partitions whose leader does not answer in time are not in the result.
        """

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        """Return the known ids of these topics. A topic that is deleted and created again gets a new id."""

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        """Return the first offset at or after each time (milliseconds since the epoch); None if there is none."""

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """Return the end offset of the last fetch response, without a request; None before the first response."""

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last fetch response: the end after records of open transactions as well."""

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Return how many seconds ago the end offset was received; None if it was not. After :meth:`seek` it stays
        current while the leader answers, even if the partition has no quota."""

    def contact(self) -> Contact:
        """Return which brokers and partitions can be reached. May be called at any time."""

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """Return the topic's ``cleanup.policy``; None without an answer within ``timeout`` seconds. Never raises."""

    def read(
        self, spans: Mapping[TopicPartition, Span | list[Span]], *, as_fetched: bool = False
    ) -> AsyncGenerator[Fetched, None]:
        """Read these partitions from the start of each span to its end, independent of the group: they need not be
        assigned to this member.

        Only committed records are read; ``as_fetched``: all that the client itself would fetch. Records that retention
        has deleted are skipped. Several spans of one partition must ascend. A partition's last ``next_offset`` is the
        end of its last span.

        Close the iterator if you leave it early (``contextlib.aclosing``). Raises ClientError, also if nothing comes
        for 30 seconds.
        """
