"""Which leader wrote the records that were read of one partition (KIP-320). Plain methods: no ``await``, no I/O."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["UNKNOWN", "LeaderEpochs", "epoch_of"]

UNKNOWN: Final = -1
"""The leader epoch of records whose broker or format tells none, and of offsets that were committed without one."""
_KEPT: Final = 16
"""Changes that are kept. Older records count as written by a later leader, which costs nothing: a log that holds
records of the later epoch is the same up to there."""


class LeaderEpochs:
    """The leader epochs of one session.

    ``offset``: of a record that was written under ``epoch``; those before it were written under that or an older one.

    :ivar seen: pairs of first offset and epoch, both ascending. Replaced, never changed, so that it may be kept.
    """

    __slots__ = ("seen",)

    def __init__(self, offset: int = 0, epoch: int = UNKNOWN) -> None:
        self.seen: tuple[tuple[int, int], ...] = () if epoch == UNKNOWN else ((offset, epoch),)

    @property
    def newest(self) -> int:
        """The newest of them."""
        return self.seen[-1][1] if self.seen else UNKNOWN

    def differs(self, offset: int, epoch: int) -> bool:
        """Whether a record at this offset, under this epoch, tells that the log may be another one since."""
        if epoch == UNKNOWN or not self.seen:
            return False
        start, newest = self.seen[-1]
        return epoch > newest or (epoch < newest and offset >= start)

    def note(self, offset: int, epoch: int) -> None:
        """Records from this offset on were written under this epoch, in the same log."""
        if epoch > self.newest:
            self.seen = (*self.seen, (offset, epoch))[-_KEPT:]


def epoch_of(seen: tuple[tuple[int, int], ...], offset: int) -> int:
    """The epoch of the record at an offset, given :attr:`LeaderEpochs.seen`; of what is older than all that is kept, a
    later one."""
    if not seen:
        return UNKNOWN
    return seen[max(0, bisect_right(seen, offset, key=lambda pair: pair[0]) - 1)][1]
