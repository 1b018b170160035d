"""Takes what goes into each transaction: of which sessions, and how much of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from aioparallel.group.committing import Member
from aioparallel.group.sampling import Sampler
from aioparallel.group.sessions import Session
from aioparallel.transactions.cut import Cut, Share, Taken, quick_share, share, take
from aioparallel.transactions.outbox import TransactionOutbox
from aioparallel.transactions.pace import Pace

__all__ = ["Cutter"]

_MANY_LANES: Final = 200_000
"""Records that may be complete and not committed, where their order is kept (100 bytes for each). Then nothing more of
the session starts: one abort after the other must not fill the memory."""

_LEFT_OUT: Final = 5.0
"""Seconds for which a partition is left alone whose offsets are refused: it would have all others aborted with it."""


class Cutter:
    """One for each committer. ``pace``: how much a transaction takes."""

    def __init__(self, outbox: TransactionOutbox, member: Member, sampler: Sampler, pace: Pace) -> None:
        self._outbox = outbox
        self._waiting = outbox.waiting
        self._member = member
        self._options = member.options
        self._sampler = sampler
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._passed_over: set[Session] = set()  # for want of room in the last transaction
        self._short: dict[Session, int] = {}  # whose map did not fit, and in which cut
        self._left_out: dict[Session, float] = {}  # whose offsets are refused, until then
        self._on_probation: set[Session] = set()  # whose offsets were refused the last time
        self.count = 0
        """Cuts so far."""
        self.is_part = False
        """Whether more has waited for the last transaction than goes with it."""

    def is_short(self, session: Session, since: int) -> bool:
        """Whether its map did not fit in one of the cuts behind the first ``since``."""
        return self._short.get(session, 0) > since

    def is_refused(self, session: Session) -> bool:
        """Whether the brokers have refused its offsets, a short while ago."""
        until = self._left_out.get(session)
        if until is not None and self._loop.time() >= until:
            del self._left_out[session]
        return session in self._left_out

    def refused(self, session: Session) -> None:
        """The brokers refuse its offsets. Nothing more of it starts until they take them."""
        self._left_out[session] = self._loop.time() + _LEFT_OUT
        self._on_probation.add(session)

    def accepted(self, session: Session) -> None:
        """They have taken them."""
        self._on_probation.discard(session)

    async def take(self) -> Cut:
        """Of all sessions, as they are now; they may go meanwhile."""
        shares: list[Share] = []
        self.count += 1
        self._short = {session: cut for session, cut in self._short.items() if not session.dropped}
        self._left_out = {session: until for session, until in self._left_out.items() if not session.dropped}
        self._on_probation = {session for session in self._on_probation if not session.dropped}
        self._outbox.cutting()
        left_behind = 0
        sessions = self._turn_of([session for session in self._member.sessions() if session.may_commit()])
        rooms, left = self._rooms(sessions), float(self._pace.bytes)
        for session in sessions:
            if not session.may_commit():
                continue  # went meanwhile
            if self._is_left_out(session):
                # What is in flight of it ends, and waits here for long: no more of it, and none of the others' room.
                self._sampler.hold_back(session)
                left_behind += self._waiting.size_of(session)
                continue
            if not (session.dirty or self._waiting.has(session) or self._sampler.is_held_back(session)):
                continue
            taken = take(session, self._waiting)
            # What is larger than the room of its session goes in its turn, one by one.
            one = await self._share(taken, rooms.get(session, inf), 1 if left > 0 else 0)
            if not session.may_commit():
                continue  # went while its map was written
            if session in self._on_probation or len(taken.lanes) > _MANY_LANES:
                self._sampler.hold_back(session)
            else:
                self._sampler.note(one.whole, taken.said.map, taken.promised)
            left_behind += one.behind
            await self._sampler.wrote(session, one.maps)
            if one.is_short:
                self._short[session] = self.count
                continue
            if one.is_passed_over:
                self._passed_over.add(session)
                continue
            left -= one.size
            if one.says_nothing:
                self._sampler.acknowledged(one.sample)
            else:
                shares.append(one)
        self._outbox.left_behind(left_behind)
        self.is_part = bool(self._passed_over) or any(one.is_part for one in shares)
        return Cut([one for one in shares if one.sample.session.may_commit()])

    def _rooms(self, sessions: Iterable[Session]) -> Mapping[Session, float]:
        """Bytes for each of them, where not all may go that waits: as many for each, and what one does not need is for
        the others."""
        left: float = self._pace.bytes
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
        """Those first that there was no room for the last time."""
        first, self._passed_over = self._passed_over, set()
        return sorted(sessions, key=lambda session: session not in first) if first else sessions

    async def _share(self, taken: Taken, room: float, least: int) -> Share:
        limit, formats = self._sampler.limit.characters, self._options.offset_map_formats
        if not taken.said.is_large and (one := quick_share(taken, limit, formats, room)) is not None:
            return one
        write = partial(share, taken, limit, formats, room, least)
        return await self._sampler.write(write, is_large=taken.said.is_large or taken.is_much)

    def _is_left_out(self, session: Session) -> bool:
        return session in self._waiting.held or self.is_refused(session)
