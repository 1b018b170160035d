"""Which offsets of one partition are complete."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from aioparallel.offsets.offset_map import OffsetMap

__all__ = ["Ledger"]

_SMALL = 1_024
"""Dead entries that are left alone: to scan them costs about a microsecond."""


class Ledger:
    """Which offsets of one partition are complete, from the committed one on.

    ``base`` is the committed offset, where reading starts. ``restored`` is the map found beside it: what it
    calls complete is not run again.

    It keeps the incomplete offsets only, so memory does not grow with what was completed above a stuck one.
    ``position``, ``restored_until``, ``highest_completed`` and ``incompletes`` are plain attributes because
    they are read for every record; nobody but the ledger writes them.

    :ivar position: the next offset to fetch.
    :ivar restored_until: the last offset the restored map speaks of: at or below it, what is not incomplete is
        complete. ``base - 1`` without a map.
    :ivar highest_completed: the highest offset that :meth:`complete` or the restored map called complete;
        ``base - 1`` when none. Gaps in the log do not count, so it may be below ``next_commit - 1``.
    :ivar incompletes: ascending: registered and not complete, and above the position what the restored map
        lists. The object may be replaced by an equal one in ``register`` and ``next_commit``.
    """

    __slots__ = (
        "_entered",
        "_restored",
        "_restored_at",
        "_slots",
        "highest_completed",
        "incompletes",
        "position",
        "restored_until",
    )

    def __init__(self, base: int, restored: OffsetMap | None = None) -> None:
        if base < 0:
            raise ValueError(f"base={base}: an offset is not negative")
        if restored is None:
            restored = OffsetMap(base, base - 1)
        elif restored.base_offset != base:
            raise ValueError(f"the restored map is about offset {restored.base_offset}, not about base={base}")
        self.position = base
        self.restored_until = restored.highest_succeeded
        self.highest_completed = _last_complete(restored)
        self.incompletes: dict[int, None] = dict.fromkeys(restored.incompletes)
        # The restored map's incompletes, and how many of them the position has passed.
        self._restored, self._restored_at = restored.incompletes, 0
        # How many were ever incomplete, less those that the log did not deliver.
        self._entered = len(self.incompletes)
        # Entries of the dict, dead ones too, since it was last rebuilt.
        self._slots = self._entered

    def __repr__(self) -> str:
        return f"<Ledger position {self.position} incomplete {len(self.incompletes)} next_commit {self.next_commit}>"

    def register(self, offsets: Sequence[int], next_offset: int) -> list[int]:
        """Take in what one fetch delivered; returns those of ``offsets`` that must run.

        ``offsets`` ascend and are below ``next_offset``, the position after them. Every offset from the old
        position up to ``next_offset`` that was not delivered does not exist (compacted, a transaction marker,
        aborted): it is complete. Offsets below the position were registered before and are ignored; those that
        the restored map calls complete need not run. Returns ``offsets`` itself when it is a list and all of
        them must run. Raises ValueError when the offsets do not fit ``next_offset``.
        """
        position = self.position
        if offsets and not offsets[0] <= offsets[-1] < next_offset:
            raise ValueError(
                f"offsets {offsets[0]} to {offsets[-1]} with next_offset={next_offset}: "
                "they must ascend and end below it"
            )
        if next_offset <= position:
            return []
        if offsets and offsets[0] < position:
            offsets = [offset for offset in offsets if offset >= position]
        if position <= self.restored_until:
            run = self._register_restored(offsets, next_offset)
        else:
            run = offsets if isinstance(offsets, list) else list(offsets)
            self._enter(run)
        self.position = next_offset
        self._rebuild_if_mostly_dead()
        return run

    def _register_restored(self, offsets: Sequence[int], next_offset: int) -> list[int]:
        """The same where the restored map still has its say."""
        until, incompletes = self.restored_until, self.incompletes
        after = bisect_left(self._restored, next_offset, self._restored_at)
        due = {offset for offset in self._restored[self._restored_at : after] if offset in incompletes}
        self._restored_at = after
        if next_offset > until:
            self._restored, self._restored_at = (), 0
        fresh_at = bisect_right(offsets, until)
        known = sorted(due.intersection(offsets[:fresh_at]))
        for gone in due.difference(known):
            del incompletes[gone]
            self._entered -= 1
        fresh = list(offsets[fresh_at:])
        self._enter(fresh)
        return known + fresh

    def _enter(self, fresh: list[int]) -> None:
        incompletes = self.incompletes
        before = len(incompletes)
        for offset in fresh:  # a third quicker than to update from a dict made for it
            incompletes[offset] = None
        entered = len(incompletes) - before
        self._entered += entered
        self._slots += entered

    def complete(self, offset: int) -> None:
        """The outcome of ``offset`` is decided. Raises ValueError when it is not incomplete: a defect of the
        caller, for each offset completes once.
        """
        try:
            del self.incompletes[offset]
        except KeyError:
            raise ValueError(
                f"offset {offset} is not incomplete: completed twice, or never registered "
                f"(position {self.position}, next_commit {self.next_commit})"
            ) from None
        if offset > self.highest_completed:  # noqa: PLR1730 - max() takes as long as all the rest
            self.highest_completed = offset

    def complete_all(self, offsets: Iterable[int]) -> None:
        """:meth:`complete` for several of them; where one is wrong, those before it are completed."""
        incompletes, highest = self.incompletes, self.highest_completed
        try:
            for offset in offsets:
                try:
                    del incompletes[offset]
                except KeyError:
                    self.complete(offset)  # raises
                if offset > highest:  # noqa: PLR1730 - as above
                    highest = offset
        finally:
            self.highest_completed = highest

    @property
    def next_commit(self) -> int:
        """The offset to commit: the first incomplete one, or the first that nothing is known of."""
        self._rebuild_if_mostly_dead()
        for offset in self.incompletes:
            return offset
        return max(self.position, self.restored_until + 1)

    @property
    def completed_count(self) -> int:
        """How many offsets :meth:`complete` was called for. Never falls."""
        return self._entered - len(self.incompletes)

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever a commit would say something new."""
        return self.position, self._entered - len(self.incompletes)

    def snapshot(self) -> OffsetMap:
        """What a commit says now: the offset to commit as base, and the map above it.

        Takes time in proportion to the incomplete offsets.
        """
        base = self.next_commit
        highest = max(self.highest_completed, base - 1)
        if highest < base:
            return OffsetMap(base, highest)
        incompletes = tuple(self.incompletes)
        return OffsetMap(base, highest, incompletes[: bisect_right(incompletes, highest)])

    def _rebuild_if_mostly_dead(self) -> None:
        # A dict keeps the entries of deleted keys until an insertion makes it grow: a million completed in
        # order leave a million dead entries in front, which every look at the first one scans, and memory
        # that never comes back. Rebuilding when seven in eight are dead is paid by the deletions. (A million
        # registered at once, completed in order: a look takes 1 ms at most; the one rebuild takes 3 ms.)
        live = len(self.incompletes)
        if self._slots - live > 7 * live + _SMALL:
            self.incompletes = dict.fromkeys(self.incompletes)
            self._slots = live


def _last_complete(restored: OffsetMap) -> int:
    """The last offset the map calls complete. One written at the end of a range of nothing but incompletes
    ends with an incomplete one."""
    highest = restored.highest_succeeded
    for offset in reversed(restored.incompletes):
        if offset != highest:
            break
        highest -= 1
    return highest
