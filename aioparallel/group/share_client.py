"""The interface of a client that is a member of a share group.

The broker gives each record to one member at a time and locks it for this member. The member acknowledges each record
by itself. A record that is not acknowledged before its lock ends is delivered again, to any member, until its delivery
count reaches the limit of the group.

What a client promises:

* It raises nothing for temporary problems (a leader moves, the coordinator is loading, a session is evicted, a
  connection drops): it logs them, backs off and tries again. It raises a :class:`~aioparallel.ClientError` for all
  others.
* Every call with a ``timeout`` (seconds) returns or raises within that time, whatever the broker does. When the time is
  up it raises :class:`TimeoutError`.
* ``fetch`` may be cancelled at any moment without losing records.
* Every acknowledgement is answered once, through its callback.
* Everything happens on the event loop that called ``start``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from aioparallel.observe.stats import Contact
from aioparallel.records.record import Record, TopicPartition

__all__ = ["AcknowledgeType", "Acknowledged", "Acquired", "ShareClient", "Unreadable"]


class AcknowledgeType(enum.IntEnum):
    """What a member tells the broker about a record; the numbers are those of KIP-932 and KIP-1222."""

    ACCEPT = 1
    """It is done."""
    RELEASE = 2
    """Deliver it again, at once."""
    REJECT = 3
    """Do not deliver it again."""
    RENEW = 4
    """The lock begins anew. The record stays with this member."""


class Unreadable(NamedTuple):
    """Offsets that this member has acquired but cannot read. The member must acknowledge each of them."""

    first: int
    last: int
    reason: str
    delivery_count: int


class Acquired(NamedTuple):
    """What one response has brought of one partition. Acquired offsets without a record (markers, compacted) are
    acknowledged as gaps by the client itself and are not here."""

    partition: TopicPartition
    records: Sequence[Record]
    """Ascending by offset."""
    delivery_counts: Sequence[int]
    """Of each record; 1 for the first delivery."""
    locked_until: float
    """When the locks of these records end, on the loop's clock. Never later than the broker's end: it counts from the
    moment at which the request was sent."""
    unreadable: Sequence[Unreadable] = ()


class Acknowledged(enum.Enum):
    """What has become of an acknowledgement."""

    DONE = "done"
    """The broker has it. After ``RENEW``: the lock begins anew.

    What is answered after ``locked_until`` may be DONE although another member has handled the record: brokers accept
    everything below the group's start offset. A ``RENEW`` is NOT_HELD then."""
    NOT_HELD = "not held"
    """The record is not locked for this member any more: its lock has ended, or its session has. It is, or will be,
    delivered again."""
    UNKNOWN = "unknown"
    """It was sent and not answered: it may be done. The record may be delivered again."""
    NOT_SENT = "not sent"
    """The client was stopped, or the partition's leader could not be reached before the lock ended."""
    RENEW_REFUSED = "renew refused"
    """The broker does not accept ``RENEW``; the lock stays as it is."""


AcknowledgeEnded = Callable[[Acknowledged, float], None]
"""Called with the answer. The second argument: after a ``RENEW`` that is done, when the lock ends, like
``Acquired.locked_until``; else 0."""


class ShareClient(Protocol):
    """A member of one share group."""

    async def start(self, timeout: float) -> None:
        """Connect. Raises BrokerUnreachable, NotAuthorized, or ClientError if the brokers have no share groups (Kafka
        before 4.2, or ``share.version=0``) or the group id belongs to a group of another type."""

    async def stop(self, timeout: float) -> None:
        """Send what is acknowledged, release all that is still locked for this member, leave the group and close all
        connections, within ``timeout`` seconds. Never raises. May be called even if ``start`` failed. Callbacks of
        acknowledgements are called before it returns."""

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics. Topics that do not exist are not in the result."""

    def subscribe(self, topics: Collection[str], on_assignment: Callable[[Collection[TopicPartition]], None]) -> None:
        """Join the group. ``on_assignment(partitions)`` is called at each change with all partitions that this member
        fetches from. Other members may fetch from the same ones. Records of a partition that is assigned no more stay
        locked until they are acknowledged or their locks end, and may be acknowledged."""

    async def fetch(self, most: int) -> Sequence[Acquired]:
        """Acquire about ``most`` records (at least 1), and return what has come. It may be more: a broker gives whole
        batches, unless it knows ``record_limit`` (KIP-1206, ShareFetch version 2), which is requested.

        Waits until there is something or :meth:`wake` is called; then the result may be empty. What was acquired by a
        fetch that was cancelled is returned by the next one, and so is what other leaders answer after it has returned.
        Without a fetch that waits, no request to acquire more is sent.

        Raises NotAuthorized, and ClientError: a group of another type has this id now, or it is full. A group that was
        deleted is joined anew."""

    def exclude(self, partitions: Collection[TopicPartition]) -> None:
        """From now on acquire nothing of these partitions, and again of those that an earlier call has excluded: they
        are paused. A request on its way may still bring some of their records. A record must not be acquired and
        released while nobody handles it, because each delivery counts."""

    def wake(self) -> None:
        """Let a waiting :meth:`fetch` return now. If none waits, the next one returns without waiting."""

    def acknowledge(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded
    ) -> None:
        """Send an acknowledgement as soon as the session of the partition's leader allows it. Does not block, and does
        not call ``ended`` before it returns. What is sent with others in one request and refused for one of them (the
        broker accepts all of a partition or none) is sent again in smaller parts.

        An offset may be acknowledged once by another type than ``RENEW``. A ``RENEW`` that was not sent yet is replaced
        by a later acknowledgement, and ends as NOT_SENT. If an offset was acquired again, the acknowledgement is of its
        latest delivery; one of an earlier delivery that was not sent yet ends as NOT_HELD."""

    @property
    def is_fetching(self) -> bool:
        """Whether a request to acquire records is on its way. What it brings is returned by the next :meth:`fetch`."""

    @property
    def lock_seconds(self) -> float | None:
        """The group's lock duration, from the last response; None before the first one."""

    @property
    def delivery_limit(self) -> int | None:
        """The group's ``share.delivery.count.limit``, which may change; None if the client does not know it."""

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic to which brokers write what the group rejects or gives up (KIP-1191), which may change; None: they
        do not, or the client does not know it."""

    @property
    def may_renew(self) -> bool:
        """Whether the broker has not refused ``RENEW`` yet."""

    def contact(self) -> Contact:
        """Return which brokers and partitions can be reached. May be called at any time."""
