"""Tracks which offsets of one partition are complete."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from aioparallel.offsets.offset_map import OffsetMap

__all__ = ["Ledger"]

_SMALL = 1_024
"""Deleted dict entries that are tolerated: scanning them takes about a microsecond."""


class Ledger:
    """Tracks which offsets of one partition are complete, from the committed offset on.

    ``base``: the committed offset, where reading starts. ``restored``: the map in its metadata; offsets that are
    complete in it do not run again.

    Only incomplete offsets are stored, so completed offsets above a stuck one take no memory. ``position``,
    ``restored_until``, ``highest_completed`` and ``incompletes`` are plain attributes because they are read for every
    record. Only the ledger writes them.

    :ivar position: the next offset to fetch.
    :ivar restored_until: the last offset in the restored map, or that :meth:`complete_unread` completed. At or below
        it, offsets that are not incomplete are complete. ``base - 1`` without a map.
    :ivar highest_completed: the highest offset that was completed here or by the restored map; ``base - 1`` if there
        is none. Gaps in the log do not count, so it may be below ``next_commit - 1``.
    :ivar incompletes: ascending. Registered offsets that are not complete and, above the position, the incomplete
        offsets of the restored map. ``register`` and ``next_commit`` may replace the object by an equal one.
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
        # Incomplete offsets of the restored map, and how many of them the position has passed.
        self._restored, self._restored_at = restored.incompletes, 0
        # Number of offsets that were ever incomplete, without those that the log did not deliver.
        self._entered = len(self.incompletes)
        # Entries of the dict since it was rebuilt, including deleted ones.
        self._slots = self._entered

    def __repr__(self) -> str:
        return f"<Ledger position {self.position} incomplete {len(self.incompletes)} next_commit {self.next_commit}>"

    def register(self, offsets: Sequence[int], next_offset: int) -> list[int]:
        """Register the offsets of one fetch. Returns those that must run.

        ``offsets`` must ascend and be below ``next_offset``, the position after them. An offset between the old
        position and ``next_offset`` that was not delivered does not exist (compacted, transaction marker, aborted), and
        is complete. Offsets below the position are already registered, and are ignored. Offsets that are complete in
        the restored map need not run. Returns ``offsets`` itself if it is a list and all of them must run. Raises
        ValueError if the offsets do not fit ``next_offset``.
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
        """:meth:`register` within the range of the restored map."""
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
        for offset in fresh:  # takes a third less than an update from a temporary dict
            incompletes[offset] = None
        entered = len(incompletes) - before
        self._entered += entered
        self._slots += entered

    def complete(self, offset: int) -> None:
        """The outcome of ``offset`` is decided. Raises ValueError if it is not incomplete, which is an error of the
        caller: each offset completes once.
        """
        try:
            del self.incompletes[offset]
        except KeyError:
            raise ValueError(
                f"offset {offset} is not incomplete: completed twice, or never registered "
                f"(position {self.position}, next_commit {self.next_commit})"
            ) from None
        if offset > self.highest_completed:  # noqa: PLR1730 - max() would take as long as the rest of the method
            self.highest_completed = offset

    def complete_all(self, offsets: Iterable[int]) -> None:
        """:meth:`complete` for several offsets. If one is wrong, those before it are completed."""
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

    def complete_unread(self, offsets: Sequence[int]) -> None:
        """Complete offsets at or above the position, before they are fetched, as if the restored map had them:
        :meth:`register` then leaves their records out. ``offsets``: ascending, without those that are complete.

        Offsets between them stay incomplete, and each takes memory until it is fetched.
        """
        for offset in offsets:
            if offset <= self.restored_until:
                self.complete(offset)
        fresh = [offset for offset in offsets if offset > self.restored_until]
        if not fresh:
            return
        chosen = set(fresh)
        start, until = max(self.position, self.restored_until + 1), fresh[-1]
        left_out = [offset for offset in range(start, until) if offset not in chosen]
        self._enter(left_out)
        self._entered += len(fresh)
        self._restored, self._restored_at = (*self._restored[self._restored_at :], *left_out), 0
        self.restored_until = until
        self.highest_completed = max(self.highest_completed, until)

    def left_unread(self, offsets: Sequence[int]) -> int:
        """Return how many unread offsets would be listed as incomplete after :meth:`complete_unread` of those of these
        ascending offsets that are not read; 0 if it would list no more than before."""
        start = max(self.position, self.restored_until + 1)
        fresh = len(offsets) - bisect_left(offsets, start)
        if not fresh:
            return 0
        return len(self._restored) - self._restored_at + offsets[-1] + 1 - start - fresh

    def is_complete(self, offset: int) -> bool:
        """Whether this offset is complete, or was not delivered by the log."""
        return (offset < self.position or offset <= self.restored_until) and offset not in self.incompletes

    @property
    def next_commit(self) -> int:
        """The offset to commit: the first incomplete one, or the first one that is unknown."""
        self._rebuild_if_mostly_dead()
        for offset in self.incompletes:
            return offset
        return max(self.position, self.restored_until + 1)

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever the content of a commit would change."""
        return self.position, self._entered - len(self.incompletes)

    def snapshot(self) -> OffsetMap:
        """The content of a commit now: the offset to commit as base, and the map above it.

        Takes time in proportion to the incomplete offsets.
        """
        base = self.next_commit
        highest = max(self.highest_completed, base - 1)
        if highest < base:
            return OffsetMap(base, highest)
        incompletes = tuple(self.incompletes)
        return OffsetMap(base, highest, incompletes[: bisect_right(incompletes, highest)])

    def _rebuild_if_mostly_dead(self) -> None:
        # A dict keeps the entries of deleted keys until an insertion makes it grow. A million offsets completed in
        # order would leave a million deleted entries in front. Each access to the first key would scan them, and the
        # memory would never be freed. Rebuilding when seven in eight are deleted is amortised by the deletions. (With a
        # million offsets registered at once and completed in order, an access takes 1 ms at most, and the one rebuild 3
        # ms.)
        live = len(self.incompletes)
        if self._slots - live > 7 * live + _SMALL:
            self.incompletes = dict.fromkeys(self.incompletes)
            self._slots = live


def _last_complete(restored: OffsetMap) -> int:
    """The last complete offset of the map. If the map was cut within a range of incomplete offsets, it ends with one of
    them."""
    highest = restored.highest_succeeded
    for offset in reversed(restored.incompletes):
        if offset != highest:
            break
        highest -= 1
    return highest
