"""What goes into one transaction: of each session its offset, its map, and the outputs they stand for. No I/O.

Offset, map and list of a session are taken in one step without an ``await``. Taken one after the other, something would
end in between: committed without its outputs, or its outputs written and not committed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from sys import maxsize
from typing import Final, Literal, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.group.companions import EMPTY
from aioparallel.group.offset_commits import Said, Sample, said, sample
from aioparallel.group.sessions import Session
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.records import TopicPartition
from aioparallel.transactions.waiting import Entry, Waiting

__all__ = ["Cut", "Share", "Taken", "quick_share", "says", "share", "take"]


_NEVER: Final = (-1, -1)
_MUCH: Final = 500


class Taken(NamedTuple):
    """What was taken of one session at one moment."""

    said: Said
    entries: Sequence[Entry]
    promised: int
    """The highest offset that the committed map speaks of."""
    acknowledged: tuple[int, int] = _NEVER
    """What the ledger had said when the session was committed last."""
    lanes: Mapping[int, Hashable] = EMPTY
    """Where a companion needs the order of lanes: of each offset that is complete and not committed."""

    @property
    def is_much(self) -> bool:
        """Whether several maps of it may take more than a few milliseconds to write."""
        return len(self.said.map.incompletes) + len(self.entries) > _MUCH


class Share(NamedTuple):
    """What one session brings to a transaction."""

    sample: Sample
    """What is to be committed."""
    entries: Sequence[Entry]
    whole: Sample
    """What would be, were there room for all outputs."""
    is_short: bool = False
    """Whether it says less than is committed already: the map did not fit even so far. Committed, it would have records
    run again whose outputs stand there; so the session waits, until what holds its base has ended."""
    is_passed_over: bool = False
    """Whether there was no room for any of it."""
    behind: int = 0
    """Bytes of outputs that wait though there were room for them: their records are above what a cut map can say."""
    maps: int = 1
    """That were written for it."""

    @property
    def size(self) -> int:
        """Bytes of its outputs."""
        return sum([entry.size for entry in self.entries])

    @property
    def is_part(self) -> bool:
        """Whether more would go, and waits for the next transaction."""
        return self.is_passed_over or self.sample is not self.whole

    @property
    def is_new(self) -> bool:
        """Whether the broker has not exactly this position already."""
        before = self.sample.session.acknowledged
        return before is None or self.sample.committed[:2] != before[:2]

    @property
    def says_nothing(self) -> bool:
        """Whether the broker has all of it already."""
        return not (self.entries or self.is_new or self.sample.session.has_news)


def take(session: Session, waiting: Waiting) -> Taken:
    """Take base, map and list of a session: one step."""
    lanes = EMPTY if session.beside is None else session.beside.lanes()
    return Taken(said(session), waiting.of(session), session.promised, session.acknowledged_version or _NEVER, lanes)


def quick_share(taken: Taken, limit: int, formats: Literal["all", "java"], room: float) -> Share | None:
    """As :func:`share`, where one map does; else None."""
    if room < inf and sum([entry.size for entry in taken.entries]) > room:
        return None
    one = sample(taken.said, limit, formats)
    return None if one.cut else Share(one, taken.entries, one)


def share(taken: Taken, limit: int, formats: Literal["all", "java"], room: float, least: int = 0) -> Share:
    """Write it. Reads nothing but what was taken: any thread may. ``room``: bytes of outputs that may go, but for the
    first ``least`` entries, which go however large they are.

    Where the map must be cut, outputs of records above what it can say wait for the next transaction: nothing says yet
    that these are complete. Outputs of several records together need all of them said; where that cannot be, none of
    them is, as if they were not complete yet. The same with those that there is no room for.
    """
    whole, entries, maps = _sayable(taken.said, taken.entries, limit, formats, taken.lanes)
    is_short = _is_short(whole, taken.promised)
    behind = sum([entry.size for entry in taken.entries]) - (0 if is_short else sum([one.size for one in entries]))
    every = Share(whole, entries, whole, is_short, behind=behind, maps=maps)
    count = max(least, _fitting(entries, room))
    if is_short or count >= len(entries):
        return every
    if not count:
        return every._replace(entries=(), is_passed_over=True)
    while count < len(entries):
        part, goes, more = _part(taken, entries[:count], limit, formats)
        maps += more
        if goes and not _is_short(part, taken.promised):
            return Share(part, goes, whole, behind=behind, maps=maps)
        count *= 2  # with more of them it may take less of a map
    return every._replace(maps=maps)


def _part(
    taken: Taken, entries: Sequence[Entry], limit: int, formats: Literal["all", "java"]
) -> tuple[Sample, Sequence[Entry], int]:
    """As :func:`_sayable`, of these alone."""
    ids = set(map(id, entries))
    left = [entry for entry in taken.entries if id(entry) not in ids]
    unsaid = {record.offset for entry in left for record in entry.records} | _behind(left, taken.lanes)
    reach = max([taken.promised, *[record.offset for entry in entries for record in entry.records]])
    what = Said(taken.said.session, _without(taken.said.map, unsaid, reach), taken.acknowledged, taken.said.epochs)
    return _sayable(what, entries, limit, formats, taken.lanes)


def _behind(left: Iterable[Entry], lanes: Mapping[int, Hashable]) -> set[int]:
    """What is complete behind these in their lanes. Outputs of it may not be there at all, so no entry tells."""
    if not lanes:
        return set()
    first: dict[Hashable, int] = {}
    for record in chain.from_iterable(entry.records for entry in left):
        first[record._lane] = min(record.offset, first.get(record._lane, record.offset))
    return {offset for offset, lane in lanes.items() if offset > first.get(lane, offset)}


def _is_short(one: Sample, promised: int) -> bool:
    return one.cut and max(one.highest, one.committed.offset - 1) < promised


def _sayable(
    what: Said, entries: Sequence[Entry], limit: int, formats: Literal["all", "java"], lanes: Mapping[int, Hashable]
) -> tuple[Sample, Sequence[Entry], int]:
    """What can be committed of that, with which of these entries; and how many maps were written for it."""
    full, unsaid, maps = what.map, set[int](), 0
    while True:
        one = sample(what, limit, formats)
        maps += 1
        if not (one.cut or unsaid):
            return one, entries, maps
        base, highest = one.committed.offset, one.highest
        leaves, rest = _parted(entries, base, highest, unsaid)
        torn = ({record.offset for entry in rest for record in entry.records} | _behind(rest, lanes)) - unsaid
        if not any(offset < base or offset <= highest for offset in torn):
            return one, leaves, maps
        # Without them a longer map may fit, which must not say what of them this one did not reach.
        unsaid |= torn
        what = what._replace(map=_without(full, unsaid))


def _fitting(entries: Sequence[Entry], room: float) -> int:
    """How many of the first of them there is room for."""
    for count, entry in enumerate(entries):
        room -= entry.size
        if room < 0:
            return count
    return len(entries)


def _parted(entries: Sequence[Entry], base: int, highest: int, unsaid: set[int]) -> tuple[list[Entry], list[Entry]]:
    """What a committed offset and a map up to ``highest`` say, without what is ``unsaid``; and the rest: what they do
    not, and what stands behind that in a key."""
    said: list[Entry] = []
    rest: list[Entry] = []
    closed: set[object] = set()
    for entry in entries:
        lanes = {record._lane for record in entry.records if record._lane is not None}
        is_said = entry.is_within(base, highest) and unsaid.isdisjoint([record.offset for record in entry.records])
        if is_said and closed.isdisjoint(lanes):
            said.append(entry)
        else:
            rest.append(entry)
            closed |= lanes
    return said, rest


def _without(said: OffsetMap, offsets: Collection[int], reach: int = maxsize) -> OffsetMap:
    """The same up to ``reach``, where these are not complete."""
    base, highest = min(said.base_offset, *offsets), max(said.highest_succeeded, said.base_offset - 1)
    highest = max(base - 1, min(highest, reach))
    incompletes = {offset for offset in (*said.incompletes, *offsets) if offset <= highest}
    return OffsetMap(base, highest, tuple(sorted(incompletes)))


def says(committed: Committed, asked: OffsetMap) -> bool:
    """Whether this position says of all records that are complete by that map that they are."""
    return decode_offset_map(*committed[:2]).covers(asked)


class Cut:
    """The shares of all sessions in one transaction."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self.shares = {share.sample.session: share for share in shares}

    def __repr__(self) -> str:
        return f"<Cut of {len(self.shares)} sessions, {sum(len(one.entries) for one in self.shares.values())} entries>"

    @property
    def size(self) -> int:
        """Bytes of its outputs."""
        return sum([share.size for share in self.shares.values()])

    @property
    def positions(self) -> dict[TopicPartition, Committed]:
        """What is to be committed."""
        return {session.partition: share.sample.committed for session, share in self.shares.items()}

    @property
    def is_ours(self) -> bool:
        """Whether all its sessions are still there, in the group as they were."""
        return not any(session.dropped or session.fenced for session in self.shares)
