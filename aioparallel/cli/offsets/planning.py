"""What a change of offsets does: pure functions from what is stored to what would be committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.group.leader_epochs import UNKNOWN
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.offsets.editing import Difference, completed, difference, encode_like, reopened, rewound
from aioparallel.records.errors import ClientError, OffsetMapError
from aioparallel.records.record import TopicPartition

__all__ = [
    "Change",
    "Current",
    "Refused",
    "import_change",
    "redo_change",
    "rewind_change",
    "shown_ranges",
    "skip_change",
]

_SHOWN: Final = 6
"""Ranges that are listed."""
_NEW_MAP: Final = "there was no map: only aioparallel and the Java Parallel Consumer read it; other consumers"


class Refused(ClientError):
    """The change cannot be made; the message says why. Nothing was changed, unless it says what was."""


class Current(NamedTuple):
    """A partition as it is. ``position``: None if nothing is committed. ``limit``: most characters of metadata; None:
    any number."""

    partition: TopicPartition
    position: Committed | None
    begin: int
    end: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """What would be committed for one partition. ``difference``: None if nothing was committed before."""

    partition: TopicPartition
    before: Committed | None
    after: Committed
    difference: Difference | None
    notes: Sequence[str] = ()

    @property
    def is_none(self) -> bool:
        """Whether nothing would change."""
        return self.before is not None and self.before[:2] == self.after[:2]


def skip_change(now: Current, offsets: Collection[int], epoch_of: Callable[[int], int]) -> Change:
    """Mark these offsets complete. ``epoch_of``: the leader epoch of the record at an offset, or -1. Raises Refused."""
    position, known = _known(now)
    for offset in offsets:
        if offset < position.offset:
            raise Refused(
                f"{_place(now, offset)} is below the committed offset {position.offset}: it is complete already"
            )
        _check_end(now, offset)
    done = [offset for offset in offsets if known.is_complete(offset)]
    notes = [f"complete already: {shown_ranges(_as_ranges(done))}"] if done else []
    after = _edited(now, lambda: completed(known, offsets))
    return _change(now, position, known, after, epoch_of, notes)


def redo_change(now: Current, offsets: Collection[int]) -> Change:
    """Mark these offsets incomplete. Raises Refused."""
    position, known = _known(now)
    for offset in offsets:
        _check_end(now, offset)
        if offset < now.begin:
            raise Refused(f"{_place(now, offset)} is not in the log any more, which begins at {now.begin}")
    waiting = [offset for offset in offsets if not known.is_complete(offset)]
    notes = [f"not complete, so they run anyway: {shown_ranges(_as_ranges(waiting))}"] if waiting else []
    after = _edited(now, lambda: reopened(known, offsets))
    return _change(now, position, known, after, notes=notes)


def rewind_change(now: Current, to: int) -> Change:
    """Mark all offsets from ``to`` on incomplete. Offsets below stay as they are. Raises Refused."""
    notes = []
    if now.position is None:
        raise _nothing(now)
    position = now.position
    try:
        known = decode_offset_map(position.offset, position.metadata)
    except OffsetMapError as error:
        known = OffsetMap(position.offset, position.offset - 1)
        if to < position.offset:
            notes.append(f"the commit's metadata is no offset map and would be lost ({error})")
    if to < now.begin:
        notes.append(f"the log begins at {now.begin}")
        to = now.begin
    if to > now.end:
        raise Refused(f"{_place(now, to)} is above the end of the log, {now.end}")
    after = _edited(now, lambda: rewound(known, to))
    return _change(now, position, known, after, notes=notes)


def import_change(now: Current, position: Committed) -> Change:
    """Set the position as it is. Raises Refused."""
    offset, metadata = position.offset, position.metadata
    if not now.begin <= offset <= now.end:
        raise Refused(f"{_place(now, offset)} is outside the log, which has the offsets {now.begin} to {now.end}")
    if now.limit is not None and len(metadata.encode("utf-16-le")) // 2 > now.limit:
        raise Refused(
            f"{now.partition}: the metadata has {len(metadata):,} characters, and the brokers accept {now.limit:,}"
        )
    notes = []
    try:
        after = decode_offset_map(offset, metadata)
    except OffsetMapError as error:
        after = OffsetMap(offset, offset - 1)
        notes.append(f"the metadata is no offset map ({error})")
    if after.highest_succeeded >= now.end:
        raise Refused(
            f"{now.partition}: the map covers offsets up to {after.highest_succeeded}, and the log ends at {now.end}"
        )
    found = None
    if now.position is None:
        complete = sum(len(one) for one in difference(OffsetMap(now.begin, now.begin - 1), after).skipped)
        notes.append(f"nothing was committed before; {complete:,} offsets are complete in the file and would not run")
    else:
        try:
            found = difference(decode_offset_map(now.position.offset, now.position.metadata), after)
        except OffsetMapError as error:
            found = difference(OffsetMap(now.position.offset, now.position.offset - 1), after)
            notes.append(f"the metadata of the present commit is no offset map and would be lost ({error})")
    return Change(now.partition, now.position, position, found, notes)


def shown_ranges(ranges: Sequence[range]) -> str:
    """The offsets, as in ``37, 40-59 and 3 more ranges``."""
    texts = [f"{one.start}" if len(one) == 1 else f"{one.start}-{one.stop - 1}" for one in ranges[:_SHOWN]]
    more = len(ranges) - _SHOWN
    return ", ".join(texts) + (f" and {more:,} more ranges" if more > 0 else "")


def _known(now: Current) -> tuple[Committed, OffsetMap]:
    """The position with its map. Raises Refused if there is none, if its metadata is no map, or if it has offsets that
    the log does not have: they would count as complete when other records get them."""
    if now.position is None:
        raise _nothing(now)
    try:
        known = decode_offset_map(now.position.offset, now.position.metadata)
    except OffsetMapError as error:
        raise Refused(
            f"{now.partition}: the metadata of the commit is no offset map, so it cannot be changed ({error})"
        ) from error
    if (highest := max(known.highest_succeeded, known.base_offset - 1)) >= now.end:
        raise Refused(
            f"{now.partition}: the commit covers offsets up to {highest}, and the log ends at {now.end}: it has lost "
            "records, or the topic was created again. `aioparallel offsets rewind` goes back to an offset that it has"
        )
    return now.position, known


def _nothing(now: Current) -> Refused:
    return Refused(f"{now.partition}: the group has committed nothing there")


def _check_end(now: Current, offset: int) -> None:
    if offset >= now.end:
        raise Refused(f"{_place(now, offset)} is not in the log yet, which ends at {now.end}")


def _edited(now: Current, edit: Callable[[], OffsetMap]) -> OffsetMap:
    try:
        return edit()
    except ValueError as error:
        raise Refused(f"{now.partition}: {error}") from error


def _change(
    now: Current,
    position: Committed,
    before: OffsetMap,
    after: OffsetMap,
    epoch_of: Callable[[int], int] | None = None,
    notes: Sequence[str] = (),
) -> Change:
    found = difference(before, after)
    if not (found.again or found.skipped):
        return Change(now.partition, position, position, found, notes)
    try:
        text = encode_like(after, position.metadata, now.limit)
    except ValueError as error:
        raise Refused(
            f"{now.partition}: the new offset map does not fit into the commit, and a shorter one would lose completed "
            f"records ({error})"
        ) from error
    # The epoch is that of the highest record that offset and map cover, or a later one.
    highest = max(after.base_offset - 1, after.highest_succeeded)
    is_higher = highest > max(before.base_offset - 1, before.highest_succeeded)
    epoch = position.leader_epoch
    if is_higher:
        epoch = UNKNOWN if epoch_of is None else epoch_of(highest)
    written = Committed(after.base_offset, text, epoch)
    if text and not position.metadata:
        notes = [*notes, f"{_NEW_MAP} begin at {after.base_offset} and run everything from there on"]
    return Change(now.partition, position, written, found, notes)


def _place(now: Current, offset: int) -> str:
    return f"{now.partition.topic}:{now.partition.partition}:{offset}"


def _as_ranges(offsets: Collection[int]) -> list[range]:
    found: list[range] = []
    for offset in sorted(offsets):
        if found and found[-1].stop == offset:
            found[-1] = range(found[-1].start, offset + 1)
        else:
            found.append(range(offset, offset + 1))
    return found
