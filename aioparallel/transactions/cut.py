"""What goes into one transaction: of each session its offset, its map, and the outputs they stand for. No I/O.

Offset, map and list of a session are taken in one step without an ``await``. Taken one after the other, something would
end in between: committed without its outputs, or its outputs written and not committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import Said, Sample, said, sample
from aioparallel.group.sessions import Session
from aioparallel.offsets import OffsetMap
from aioparallel.records import TopicPartition
from aioparallel.transactions.waiting import Entry, Waiting

__all__ = ["Cut", "Share", "Taken", "share", "take"]


class Taken(NamedTuple):
    """What was taken of one session at one moment."""

    said: Said
    entries: Sequence[Entry]
    promised: int
    """The highest offset that the committed map speaks of."""


class Share(NamedTuple):
    """What one session brings to a transaction."""

    sample: Sample
    entries: Sequence[Entry]
    is_short: bool = False
    """Whether it says less than is committed already: the map did not fit even so far. Committed, it would have records
    run again whose outputs stand there; so the session waits, until what holds its base has ended."""

    @property
    def says_nothing(self) -> bool:
        """Whether the broker has exactly this already."""
        return not self.entries and self.sample.committed == self.sample.session.acknowledged


def take(session: Session, waiting: Waiting) -> Taken:
    """Take base, map and list of a session: one step."""
    return Taken(said(session), waiting.of(session), session.promised)


def share(taken: Taken, limit: int, formats: Literal["all", "java"]) -> Share:
    """Write it. Reads nothing but what was taken: any thread may.

    Where the map must be cut, outputs of records above what it can say wait for the next transaction: nothing says yet
    that these are complete. Outputs of several records together need all of them said; where that cannot be, none of
    them is, as if they were not complete yet.
    """
    what, entries, promised = taken
    unsaid: set[int] = set()
    while True:
        one = sample(what, limit, formats)
        leaves: Sequence[Entry] = entries
        if one.cut or unsaid:
            base, highest = one.committed.offset, one.highest
            leaves, rest = _parted(entries, base, highest, unsaid)
            torn = {record.offset for entry in rest for record in entry.records} - unsaid
            if any(offset < base or offset <= highest for offset in torn):
                # Without them a longer map may fit, which must not say what of them this one did not reach.
                unsaid |= torn
                what = what._replace(map=_without(taken.said.map, unsaid))
                continue
        return Share(one, leaves, one.cut and max(one.highest, one.committed.offset - 1) < promised)


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


def _without(said: OffsetMap, offsets: set[int]) -> OffsetMap:
    """The same, where these are not complete."""
    base, highest = min(said.base_offset, *offsets), max(said.highest_succeeded, said.base_offset - 1)
    incompletes = {*said.incompletes, *[offset for offset in offsets if offset <= highest]}
    return OffsetMap(base, highest, tuple(sorted(incompletes)))


class Cut:
    """The shares of all sessions in one transaction."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self.shares = {share.sample.session: share for share in shares}

    def __repr__(self) -> str:
        return f"<Cut of {len(self.shares)} sessions, {sum(len(one.entries) for one in self.shares.values())} entries>"

    @property
    def positions(self) -> dict[TopicPartition, Committed]:
        """What is to be committed."""
        return {session.partition: share.sample.committed for session, share in self.shares.items()}

    @property
    def is_ours(self) -> bool:
        """Whether all its sessions are still there, in the group as they were."""
        return not any(session.dropped or session.fenced for session in self.shares)
