"""The Kafka client as the engine sees it. The engine owns this interface; clients implement it.

What a client promises:

* It never raises for what passes by itself (a leader moves, a coordinator is loading, a connection drops):
  it logs, backs off and goes on. It raises a :class:`~aioparallel.errors.ClientError` for the rest.
* Every call with a ``timeout`` (seconds) returns or raises within it, whatever the broker does; when the time
  is up it raises :class:`TimeoutError`.
* ``fetch`` may be cancelled at any moment without losing records.
* Everything happens on the event loop that called ``start``.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from aioparallel.errors import InstanceFenced
from aioparallel.observe.stats import Contact
from aioparallel.records import Record, TopicPartition

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


# Seconds for one request to the cluster while a session opens, is reset or has lost its end; and between two tries.
REQUEST_TIMEOUT: Final = 10.0
REQUEST_PAUSE: Final = 0.5


class Generation(NamedTuple):
    """A member's place in one generation of its group: what a commit is fenced with."""

    id: int
    member_id: str
    group: str = ""
    """Which one, where one client is a member of several."""


class Committed(NamedTuple):
    """A committed offset (the next one to read) and the text stored beside it."""

    offset: int
    metadata: str
    leader_epoch: int = -1
    """Under which leader the last record that both speak of was written, or a later one; -1: unknown."""
    topic_id: bytes = b""
    """Of the topic that it is of, for a commit: for another one of the same name it is not taken. Empty: not known."""


class CommitFault(enum.Enum):
    """Why the broker did not take the commit of one partition."""

    RETRIABLE = "retriable"
    """It may work later, under the same generation: coordinator moved, timed out, loading, rebalance begun."""
    METADATA_TOO_LARGE = "metadata too large"
    """The text is longer than the broker's ``offset.metadata.max.bytes``."""
    FENCED = "fenced"
    """The generation or the member is gone: this partition may have another owner now."""
    REFUSED = "refused"
    """It will not work: not authorised, topic deleted."""
    HELD = "held"
    """It was not tried: one of its records is complete, and is not put away yet."""


class Fetched(NamedTuple):
    """What one fetch took from one partition.

    ``records`` ascend by offset, with gaps where the log has them. ``next_offset`` is the position after them:
    every offset below it that was not delivered does not exist for this reader (compacted, a transaction
    marker, aborted). ``records`` may be empty while ``next_offset`` has moved.
    """

    partition: TopicPartition
    records: Sequence[Record]
    next_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """Under which leaders they were written, as far as that is known: pairs of first offset and leader epoch, both
    ascending. The first one may begin below them."""
    topic_id: bytes = b""
    """Of the topic they were read from, as far as it is known: another one is another topic of the same name."""
    leader_changed: bool = False
    """Nothing was read, but another leader leads: it may not have what was read before."""


class Span(NamedTuple):
    """Offsets from ``start`` on, those below ``end``."""

    start: int
    end: int


class RebalanceListener(Protocol):
    """What the engine does when the assignment changes. Called on the event loop, never two at a time for one group."""

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """These partitions came in addition to those already held. ``generation`` is the member's new one,
        and from now on that of the partitions kept as well (cooperative rebalance). Must be quick: a member
        may be without heartbeats meanwhile. Nothing is fetched for them until :meth:`Client.seek`.
        """

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions go; until this returns, commits under their generation are still accepted.

        The client waits for it, with heartbeats running, before the member joins again.
        """

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are gone already (session expired, fenced): no commit is possible any more. None: the member
        merely waits for an assignment."""

    def fenced(self, error: InstanceFenced) -> None:
        """Another process has joined with this member's ``group_instance_id``: it is a member no more, and joins not
        again. What it held was told as ``lost`` before; only what was being revoked still is. Once, and the last call
        but for the end of that one."""


class Client(Protocol):
    """A Kafka consumer, one member of one group. See the module for what it promises."""

    async def start(self, timeout: float) -> None:
        """Connect. Raises BrokerUnreachable or NotAuthorized within ``timeout`` seconds."""

    async def stop(self, timeout: float) -> None:
        """Leave the group and close all connections; at most ``timeout`` seconds, never raises, may be called
        whether or not ``start`` succeeded. Does not call the listener."""

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics (or of those whose whole name matches), as the cluster knows them now.

        Creates nothing. Topics that do not exist are simply not in the result.
        """

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Join the group for these topics; returns at once, the listener hears the rest. A pattern takes in
        topics created later."""

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Take at most ``quotas[p]`` records from each partition ``p``, and ``most`` in all, in one walk over what is
        there; those that ``most`` leaves out have their turn in the next walks.

        Waits until there is something for one of them, or :meth:`wake` was called (then the list may be empty).
        Partitions without a quota are left alone and lose nothing; ones no longer assigned are ignored.

        Raises OffsetOutOfRange when the position of a partition in ``quotas`` is outside the log, and FetchFailed
        (UnreadableBatch where it is known which offsets it holds) when the data there cannot be read: after everything
        else there was returned, and again until :meth:`seek`, at which it is fetched anew. And NotAuthorized,
        InstanceFenced, ClientError. A record that cannot be decoded, in a batch that can be read, comes like any other,
        marked (:func:`~aioparallel.history.make_undecodable`).
        """

    def wake(self) -> None:
        """Let the waiting :meth:`fetch` return now; without one, the next returns without waiting."""

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """One OffsetCommit request, one attempt, fenced with ``generation``. A result for each partition asked
        for: None means acknowledged. A request that got no answer is RETRIABLE for each of them.

        FENCED under the generation that the member believes in is news for the client itself: unless it is giving
        partitions away already, the listener hears ``lost`` at once, and the client joins again. Nobody stays a member
        whose commits are refused. Where it is the ``group_instance_id`` that another process has, it does not join
        again: the listener hears ``fenced`` as well.
        """

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """The group has refused this generation elsewhere: as for :meth:`commit`, that is news for the client.
        ``instance_fenced``: with FENCED_INSTANCE_ID."""

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """The group's committed offsets and texts; partitions without one are not in the result."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch this assigned partition from ``offset`` on; also what starts the fetching after an assignment.
        Ignored for a partition that is not assigned any more."""

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The first offset each log holds."""

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """The offset the next record will get (under read_committed: the end of what is decided)."""

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The offset the next record will get, whatever is decided: behind records of open transactions, too."""

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """The offset up to which each log is the one that a leader epoch is of: where the records of that epoch, and of
        those before it, end. For -1, and where brokers do not tell it, the end of the log; where the log never had that
        leader, its beginning. Partitions whose leader does not answer in time are not in the result."""

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        """The id of each topic, which another one of the same name does not have; those of which the cluster tells none
        are not in the result."""

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after each time (milliseconds since the epoch); None where there is none."""

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The end offset that the last fetch response told, without asking the broker; None before one."""

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """The same, whatever is decided: behind records of open transactions, too. Told with fetches alone."""

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Seconds since the end offset was told, by whatever; None before it was. For a partition that was sought, and
        whose leader answers, these are few, though nothing may be fetched of it."""

    def contact(self) -> Contact:
        """What is heard of the cluster. At any time."""

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """The topic's ``cleanup.policy``; None where the cluster does not tell within ``timeout`` seconds. Never
        raises."""

    def read(self, spans: Mapping[TopicPartition, Span | list[Span]]) -> AsyncGenerator[Fetched, None]:
        """Read these partitions, assigned to this member or not, from the start of each span to its end, and then stop:
        beside all else, without the group. Committed records only; what retention has taken away meanwhile is passed.
        Several spans of a partition ascend.

        A partition's last ``next_offset`` is the end of its (last) span. Close the iterator when it is left early
        (``contextlib.aclosing``). Raises ClientError, also when nothing comes for 30 seconds.
        """
