"""The acquired offsets of one partition, and which acknowledgements of them are due. Synchronous; times are passed in.

A broker accepts all acknowledgements of a partition in one request, or refuses them together if it refuses one. So each
request contains one :class:`Group` of a partition:

* first acknowledgements whose locks have not ended by this client's clock, then others by themselves: a late one does
  not spoil the rest;
* ``RENEW`` by itself, because a group of members can forbid it, and never after its lock has ended by this client's
  clock, because the broker accepts everything below the start offset of the partition, also what others have ended;
* what was refused together is sent again in halves, until only the refused ones are left.

Each acknowledgement ends once. Ends are collected in a list, for the caller to report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.group.share_client import Acknowledged, AcknowledgeEnded

__all__ = ["Ended", "Group", "PartitionAcks"]

_RENEW = AcknowledgeType.RENEW
_offset = attrgetter("offset")
_IN_TIME, _RENEWING, _LATE, _REFUSED = range(4)
"""What a group consists of. The last three take turns, together with the first if there is always something of it."""


class Ended(NamedTuple):
    """An acknowledgement that has ended: to be called with the others."""

    report: AcknowledgeEnded
    result: Acknowledged
    locked_until: float


class _Lock:
    """The lock of one acquired offset, while it is not acknowledged for good."""

    __slots__ = ("is_doubtful", "is_ending", "over", "until")

    def __init__(self, until: float, over: float) -> None:
        self.until = until  # not later than its end at the broker
        self.over = over  # not earlier than that
        self.is_ending = False  # an acknowledgement other than RENEW was given
        self.is_doubtful = False  # the broker has probably released it

    def is_late(self, now: float) -> bool:
        """Whether an acknowledgement may be refused."""
        return self.is_doubtful or self.until <= now

    def is_over(self, now: float) -> bool:
        """Whether a refusal is believed, although others were refused with it."""
        return self.is_doubtful or self.over <= now


class _Ack:
    __slots__ = ("ended", "kind", "lock", "offset")

    def __init__(self, offset: int, kind: int, ended: AcknowledgeEnded | None, lock: _Lock) -> None:
        self.offset = offset
        self.kind = kind
        self.ended = ended  # None: a gap, or a record that the member has not seen: nobody asks about it
        self.lock = lock


class Group(NamedTuple):
    """Acknowledgements of one partition for one request, ascending by offset. The broker accepts or refuses all."""

    acks: Sequence[_Ack]
    renews: bool

    def batches(self) -> tuple[AcknowledgementBatch, ...]:
        """The same as ranges: with one type if all offsets have the same, else with one for each."""
        found: list[AcknowledgementBatch] = []
        acks = self.acks
        start = 0
        for at in range(1, len(acks) + 1):
            if at < len(acks) and acks[at].offset == acks[at - 1].offset + 1:
                continue
            kinds = tuple([ack.kind for ack in acks[start:at]])
            types = kinds[:1] if len(set(kinds)) == 1 else kinds
            found.append(AcknowledgementBatch(acks[start].offset, acks[at - 1].offset, types))
            start = at
        return tuple(found)


class PartitionAcks:
    """See the module.

    An offset that is acquired again is a new delivery: what is still due for the one before ends as NOT_HELD.

    ``ended``: gets the acknowledgements that have ended."""

    def __init__(self, ended: list[Ended]) -> None:
        self._locks: dict[int, _Lock] = {}
        self._due: dict[int, _Ack] = {}
        self._refused: deque[list[_Ack]] = deque()  # smaller parts of groups that were refused
        self._turn = 0
        self._was_passed = False  # other ones are due than those that were taken last
        self._ended = ended

    @property
    def is_due(self) -> bool:
        return bool(self._due or self._refused)

    @property
    def holds(self) -> bool:
        """Whether an acquired offset is not acknowledged for good."""
        return bool(self._locks)

    # -- what the member does

    def acquired(self, offsets: Iterable[int], until: float, over: float) -> None:
        """These offsets were acquired. ``until``, ``over``: the earliest and the latest time when their locks end."""
        due = self._due
        for offset in offsets:
            self._locks[offset] = _Lock(until, over)
            if due and (old := due.pop(offset, None)) is not None:
                self._end(old, Acknowledged.NOT_HELD)

    def gap(self, first: int, last: int, until: float, over: float) -> None:
        """These acquired offsets have no records. They are acknowledged as such."""
        self.acquired(range(first, last + 1), until, over)
        for offset in range(first, last + 1):
            lock = self._locks[offset]
            lock.is_ending = True
            self._due[offset] = _Ack(offset, AcknowledgeType.GAP, None, lock)

    def is_held(self, offset: int, until: float, now: float) -> bool:
        """Whether this offset is still locked by the acquisition whose locks end at ``until``, as far as is known."""
        lock = self._locks.get(offset)
        return lock is not None and lock.until == until and not lock.is_late(now)

    def give_back(self, offsets: Iterable[int], until: float) -> None:
        """Release what the member has not seen of the acquisition whose locks end at ``until``."""
        for offset in offsets:
            lock = self._locks.get(offset)
            if lock is not None and lock.until == until and not lock.is_ending:
                self._acknowledge(_Ack(offset, AcknowledgeType.RELEASE, None, lock))

    def acknowledge(self, offset: int, kind: int, ended: AcknowledgeEnded) -> None:
        """Make an acknowledgement due. Ends at once as NOT_HELD if there is nothing to acknowledge."""
        lock = self._locks.get(offset)
        if lock is None or lock.is_ending:
            self._ended.append(Ended(ended, Acknowledged.NOT_HELD, 0.0))
            return
        self._acknowledge(_Ack(offset, kind, ended, lock))

    def _acknowledge(self, ack: _Ack) -> None:
        if (renewal := self._due.pop(ack.offset, None)) is not None:
            self._end(renewal, Acknowledged.NOT_SENT)
        ack.lock.is_ending = ack.kind != _RENEW
        self._due[ack.offset] = ack

    # -- what is sent

    def take(self, now: float, *, plain: bool = False) -> Group | None:
        """The next group to send; None if there is none. It must be given back to one of the methods below.

        ``plain``: only acknowledgements that are in time, and none that renews."""
        if self._was_passed and not plain:
            # A busy partition has new ones in each request: without turns, locks would end before they are renewed.
            self._was_passed = False
            if (found := self._take_other(now)) is not None:
                return found
        if (found := self._take(_IN_TIME, now)) is not None:
            self._was_passed = self.is_due
            return found
        return None if plain else self._take_other(now)

    def _take_other(self, now: float) -> Group | None:
        for _ in range(_REFUSED):
            self._turn = self._turn % _REFUSED + 1
            found = self._take_refused(now) if self._turn == _REFUSED else self._take(self._turn, now)
            if found is not None:
                return found
        return None

    def _take(self, which: int, now: float) -> Group | None:
        """Those of one kind. Renewals that are late end."""
        if not self._due:
            return None
        renews, late = which == _RENEWING, which == _LATE
        found, ended, others = list[_Ack](), list[_Ack](), dict[int, _Ack]()
        for offset, ack in self._due.items():
            lock = ack.lock
            is_late = lock.is_doubtful or lock.until <= now  # is_late(), inlined: a call would double the time
            if (ack.kind == _RENEW) is not renews or not (renews or is_late is late):
                others[offset] = ack
            elif renews and is_late:
                ended.append(ack)
            else:
                found.append(ack)
        self._due = others
        for ack in ended:
            self._end(ack, Acknowledged.NOT_HELD)
        found.sort(key=_offset)
        return Group(found, renews) if found else None

    def _take_refused(self, now: float) -> Group | None:
        while self._refused:
            found = []
            for ack in self._refused.popleft():
                if self._locks.get(ack.offset) is not ack.lock:
                    self._end(ack, Acknowledged.NOT_HELD)
                elif ack.kind == _RENEW and ack.lock.is_ending:
                    self._end(ack, Acknowledged.NOT_SENT)
                elif ack.kind == _RENEW and ack.lock.is_late(now):
                    self._end(ack, Acknowledged.NOT_HELD)
                else:
                    found.append(ack)
            if found:
                return Group(found, found[0].kind == _RENEW)
        return None

    # -- what has become of a group

    def done(self, group: Group, now: float, until: float = 0.0, over: float = 0.0) -> None:
        """The broker has accepted it. ``until``, ``over``: of renewed locks.

        A renewal that is late by now may have been accepted because another member has ended the record. What has
        become of an acknowledgement that follows it, the broker says."""
        for ack in group.acks:
            lock = ack.lock
            if ack.kind != _RENEW:
                self._end(ack, Acknowledged.DONE)
            elif not lock.is_late(now):
                lock.until, lock.over = until, over
                self._end(ack, Acknowledged.DONE, until)
            elif lock.is_ending:
                self._report(ack, Acknowledged.NOT_HELD)
            else:
                self._end(ack, Acknowledged.NOT_HELD)

    def refused(self, group: Group, now: float) -> None:
        """The broker has refused it, because of one or more of its offsets."""
        over = [ack for ack in group.acks if ack.lock.is_over(now)]
        rest = [ack for ack in group.acks if not ack.lock.is_over(now)]
        if len(group.acks) == 1:
            over, rest = [*group.acks], []
        for ack in over:
            self._end(ack, Acknowledged.NOT_HELD)
        if over and rest:
            self._refused.appendleft(rest)
        elif rest:
            middle = len(rest) // 2
            self._refused.extendleft((rest[middle:], rest[:middle]))

    def not_held(self, group: Group) -> None:
        """The broker knows of no locks."""
        for ack in group.acks:
            self._end(ack, Acknowledged.NOT_HELD)

    def renewing_refused(self, group: Group) -> None:
        """Renewing is not allowed. Locks stay as they are."""
        due = [ack for ack in self._due.values() if ack.kind == _RENEW]
        for ack in due:
            del self._due[ack.offset]
        for ack in (*group.acks, *due):
            self._end(ack, Acknowledged.RENEW_REFUSED)

    def unknown(self, group: Group) -> None:
        """It was sent, and there is no answer."""
        for ack in group.acks:
            self._end(ack, Acknowledged.UNKNOWN)

    def again(self, group: Group, now: float, late: Acknowledged = Acknowledged.NOT_HELD) -> None:
        """It was not processed, and is due again. What is late by now ends with the result ``late``."""
        for ack in group.acks:
            if self._locks.get(ack.offset) is not ack.lock:
                self._end(ack, Acknowledged.NOT_HELD)
            elif ack.lock.over <= now:
                self._end(ack, late)
            elif ack.offset in self._due or (ack.kind == _RENEW and ack.lock.is_ending):
                self._end(ack, Acknowledged.NOT_SENT)  # another one takes its place
            else:
                self._due[ack.offset] = ack

    # -- what ends without an answer

    def released(self) -> None:
        """The broker has most likely released all locks: the share session has ended, or another broker leads. What is
        due is sent nevertheless, by itself, and a refusal is believed at once."""
        for lock in self._locks.values():
            lock.is_doubtful = True

    def expire(self, now: float) -> None:
        """While nothing can be sent: what is due and late ends as NOT_SENT."""
        self._end_due(Acknowledged.NOT_SENT, [ack for ack in self._all_due() if ack.lock.until <= now])

    def clear(self, result: Acknowledged) -> None:
        """Forget all locks. What is due ends with this result."""
        self._end_due(result, self._all_due())
        self._locks.clear()

    def _all_due(self) -> list[_Ack]:
        return [*self._due.values(), *[ack for some in self._refused for ack in some]]

    def _end_due(self, result: Acknowledged, acks: Sequence[_Ack]) -> None:
        ending = set(acks)
        self._due = {offset: ack for offset, ack in self._due.items() if ack not in ending}
        left = [[ack for ack in some if ack not in ending] for some in self._refused]
        self._refused = deque([some for some in left if some])
        for ack in acks:
            self._end(ack, result)

    def _end(self, ack: _Ack, result: Acknowledged, locked_until: float = 0.0) -> None:
        renews = ack.kind == _RENEW  # which leaves the lock as it is, unless there is none
        if not (renews and result is not Acknowledged.NOT_HELD) and self._locks.get(ack.offset) is ack.lock:
            del self._locks[ack.offset]
            if renews and (due := self._due.pop(ack.offset, None)) is not None:
                self._end(due, Acknowledged.NOT_HELD)
        self._report(ack, result, locked_until)

    def _report(self, ack: _Ack, result: Acknowledged, locked_until: float = 0.0) -> None:
        if ack.ended is not None:
            self._ended.append(Ended(ack.ended, result, locked_until))
