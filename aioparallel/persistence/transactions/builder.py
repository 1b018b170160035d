"""Builds the batch of each transaction: chooses the sessions, and how much of each goes in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from aioparallel.group.committing import GroupContext
from aioparallel.group.sampling import Sampler
from aioparallel.group.sessions import Session
from aioparallel.persistence.transactions.batch import (
    PartitionSlice,
    Taken,
    TransactionBatch,
    quick_slice,
    slice_of,
    take,
)
from aioparallel.persistence.transactions.size import TransactionSize
from aioparallel.persistence.transactions.transaction_outbox import TransactionOutbox

__all__ = ["TransactionBuilder"]

_MANY_LANES: Final = 200_000
"""Records of a session that may be complete and not committed if the order of lanes matters (100 bytes each). Above
that, no more of its records start, so repeated aborts do not fill the memory."""

_LEFT_OUT: Final = 5.0
"""Seconds for which a partition is left out after a refusal of its offsets. It would abort all other partitions too."""


class TransactionBuilder:
    """Builds the batches of one committer. ``size``: the limit of a transaction."""

    def __init__(
        self, outbox: TransactionOutbox, member: GroupContext, sampler: Sampler, size: TransactionSize
    ) -> None:
        self._outbox = outbox
        self._waiting = outbox.waiting
        self._member = member
        self._options = member.options
        self._sampler = sampler
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._passed_over: set[Session] = set()  # none of their outputs fitted into the last transaction
        self._short: dict[Session, int] = {}  # the number of the batch in which the map did not fit
        self._left_out: dict[Session, float] = {}  # the brokers refused the offsets; left out until this time
        self._on_probation: set[Session] = set()  # the brokers refused the offsets last time
        self._waits: set[Session] = set()  # an extension refused the commit last time
        self._left_behind = 0
        self.count = 0
        """Batches so far."""
        self.is_part = False
        """Whether outputs wait that did not fit into the last batch."""

    def is_short(self, session: Session, since: int) -> bool:
        """Whether the session's map did not fit in a batch after number ``since``."""
        return self._short.get(session, 0) > since

    def is_refused(self, session: Session) -> bool:
        """Whether the brokers refused the session's offsets within the last seconds."""
        until = self._left_out.get(session)
        if until is not None and self._loop.time() >= until:
            del self._left_out[session]
        return session in self._left_out

    def refused(self, session: Session) -> None:
        """The brokers refuse the session's offsets. No more of its records start until they accept them."""
        self._left_out[session] = self._loop.time() + _LEFT_OUT
        self._on_probation.add(session)

    def let_wait(self, session: Session, *, is_waiting: bool) -> None:
        """An extension refuses the session's commit, or accepts it again. Outputs that wait for it do not count towards
        the limit of the outbox. If they would fill half of it, no more records of the session start."""
        if not is_waiting:
            self._waits.discard(session)
            return
        self._waits.add(session)
        self._outbox.left_behind(self._left_behind + self._waiting_bytes())

    def _waiting_bytes(self) -> int:
        return sum([self._waiting.size_of(session) for session in self._waits if not self._is_left_out(session)])

    def accepted(self, session: Session) -> None:
        """The brokers have accepted the session's offsets."""
        self._on_probation.discard(session)

    async def take(self) -> TransactionBatch:
        """Take a slice of each session. Sessions may end meanwhile."""
        slices: list[PartitionSlice] = []
        self.count += 1
        self._short = {session: cut for session, cut in self._short.items() if not session.dropped}
        self._left_out = {session: until for session, until in self._left_out.items() if not session.dropped}
        self._on_probation = {session for session in self._on_probation if not session.dropped}
        self._waits = {session for session in self._waits if not session.dropped}
        self._outbox.cutting()
        left_behind, is_much = 0, self._waiting_bytes() * 2 > self._options.producing.max_unacknowledged_bytes
        sessions = self._turn_of([session for session in self._member.sessions() if session.may_commit()])
        rooms, left = self._rooms(sessions), float(self._size.bytes)
        for session in sessions:
            if not session.may_commit():
                continue  # ended meanwhile
            if self._is_left_out(session):
                # Outputs of records in flight would wait here for long, so no more of them start.
                self._sampler.hold_back(session)
                left_behind += self._waiting.size_of(session)
                continue
            if not (session.dirty or self._waiting.has(session) or self._sampler.is_held_back(session)):
                continue
            taken = take(session, self._waiting)
            # An output that is larger than the limit of its session is sent alone, in its turn.
            one = await self._slice(taken, rooms.get(session, inf), 1 if left > 0 else 0)
            if not session.may_commit():
                continue  # ended while its map was written
            if session in self._on_probation or (is_much and session in self._waits) or len(taken.lanes) > _MANY_LANES:
                self._sampler.hold_back(session)
            else:
                self._sampler.note(one.whole, taken.ledger.map, taken.promised)
            left_behind += 0 if session in self._waits else one.behind
            await self._sampler.wrote(session, one.maps)
            if one.is_short:
                self._short[session] = self.count
                continue
            if one.is_passed_over:
                self._passed_over.add(session)
                continue
            left -= one.size
            if one.is_empty:
                self._sampler.acknowledged(one.sample)
            else:
                slices.append(one)
        self._left_behind = left_behind
        self._outbox.left_behind(left_behind + self._waiting_bytes())
        self.is_part = bool(self._passed_over) or any(one.is_part for one in slices)
        return TransactionBatch([one for one in slices if one.sample.session.may_commit()])

    def _rooms(self, sessions: Iterable[Session]) -> Mapping[Session, float]:
        """Returns the bytes for each session if not all waiting outputs fit: equal parts. The others get what a session
        does not need."""
        left: float = self._size.bytes
        if self._outbox.bytes <= left:
            return {}
        sizes = {session: self._waiting.size_of(session) for session in sessions if not self._is_left_out(session)}
        waiting = sorted([session for session in sizes if sizes[session]], key=lambda session: sizes[session])
        rooms: dict[Session, float] = {}
        for number, session in enumerate(waiting):
            rooms[session] = left / (len(waiting) - number)
            left -= min(rooms[session], sizes[session])
        return rooms

    def _turn_of(self, sessions: Sequence[Session]) -> Sequence[Session]:
        """Returns the sessions, first those that did not fit last time."""
        first, self._passed_over = self._passed_over, set()
        return sorted(sessions, key=lambda session: session not in first) if first else sessions

    async def _slice(self, taken: Taken, room: float, least: int) -> PartitionSlice:
        limit, formats = self._sampler.limit.characters, self._options.offset_map_formats
        if not taken.ledger.is_large and (one := quick_slice(taken, limit, formats, room)) is not None:
            return one
        write = partial(slice_of, taken, limit, formats, room, least)
        return await self._sampler.write(write, is_large=taken.ledger.is_large or taken.is_much)

    def _is_left_out(self, session: Session) -> bool:
        return session in self._waiting.held or self.is_refused(session)
