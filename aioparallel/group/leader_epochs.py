"""The leader epochs of the records that were read from one partition (KIP-320). Plain methods: no ``await``, no I/O."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Final

__all__ = ["UNKNOWN", "LeaderEpochs", "epoch_of"]

UNKNOWN: Final = -1
"""The leader epoch of records whose broker or format has none, and of offsets that were committed without one."""
_KEPT: Final = 16
"""How many changes of the epoch are kept. Older records count as written in a later epoch. This is safe, because a log
that holds records of the later epoch is the same up to there."""


class LeaderEpochs:
    """The leader epochs of one assignment.

    ``offset``: a record written in ``epoch``. Records before it were written in the same or an older epoch.

    :ivar seen: pairs of first offset and epoch, both ascending. The tuple is replaced, never changed, so others may
    keep it.
    """

    __slots__ = ("seen",)

    def __init__(self, offset: int = 0, epoch: int = UNKNOWN) -> None:
        self.seen: tuple[tuple[int, int], ...] = () if epoch == UNKNOWN else ((offset, epoch),)

    @property
    def newest(self) -> int:
        """The newest epoch."""
        return self.seen[-1][1] if self.seen else UNKNOWN

    def differs(self, offset: int, epoch: int) -> bool:
        """Return whether a record at this offset with this epoch shows that the log may have changed."""
        if epoch == UNKNOWN or not self.seen:
            return False
        start, newest = self.seen[-1]
        return epoch > newest or (epoch < newest and offset >= start)

    def note(self, offset: int, epoch: int) -> None:
        """Note that records from this offset on were written in this epoch, in the same log."""
        if epoch > self.newest:
            self.seen = (*self.seen, (offset, epoch))[-_KEPT:]
        elif self.seen and offset < self.seen[-1][0]:
            self._note_below(offset, epoch)

    def _note_below(self, offset: int, epoch: int) -> None:
        """A later record is noted already, because it is skipped: what is read now may be older."""
        at = bisect_right(self.seen, offset, key=itemgetter(0))
        before, after = self.seen[:at], self.seen[at:]
        if before and before[-1][1] < epoch <= after[0][1]:
            after = after[1:] if epoch == after[0][1] else after
            self.seen = (*before, (offset, epoch), *after)[-_KEPT:]


def epoch_of(seen: tuple[tuple[int, int], ...], offset: int) -> int:
    """Return the epoch of the record at an offset, or a later one for records older than all in ``seen``."""
    if not seen:
        return UNKNOWN
    return seen[max(0, bisect_right(seen, offset, key=lambda pair: pair[0]) - 1)][1]
