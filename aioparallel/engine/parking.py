"""The bound of parked records: which partitions start nothing new because too many of theirs wait for a retry.

A service that is down makes every record of some topic fail. Without a bound, memory fills with parked records; with
one bound for all, the topics that are well stop with it. So half of the bound is reserved for the sessions in equal
parts, and whatever is not reserved for others anybody may use: one session alone has the whole bound, one of many has
half of it and its own part. A session that may park no more is *full* and starts retries only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from aioparallel.engine.session import Session

__all__ = ["Parking"]


class Parking:
    """Counts parked records, and says which sessions are full. ``bound``: records; more may be in flight.

    ``on_change(session)`` hears when :attr:`Session.full` has changed.
    """

    def __init__(self, bound: int, sessions: Collection[Session], on_change: Callable[[Session], None]) -> None:
        self._bound = bound
        self._sessions = sessions
        self._on_change = on_change
        self._full: dict[Session, None] = {}  # in the order in which they became full
        self._reserve = 0  # for each session
        self._unused = 0  # of the reserves of all
        self._stale = True  # sessions have come or gone since: to share out anew takes time in proportion to all
        self.count = 0

    def join(self, session: Session) -> None:
        """The session is new, and among the sessions already."""
        self._stale = True
        if self.count >= self._bound // 2:  # with less there is room for certain
            self._share_out()
            self._look((session,))

    def enter(self, session: Session) -> None:
        """One record of this session is parked."""
        if self._stale:
            self._share_out()
        if session.parked < self._reserve:
            self._unused -= 1
        session.parked += 1
        self.count += 1
        if self.count + self._unused >= self._bound:
            self._look(self._sessions)

    def leave(self, session: Session) -> None:
        """One record of this session is parked no more."""
        if self._stale:
            self._share_out()
        session.parked -= 1
        self.count -= 1
        if session.parked < self._reserve:
            self._unused += 1
        if self._full:
            self._look(tuple(self._full))

    def forget(self, session: Session) -> None:
        """The session is dropped, with all that it has parked; it is not among the sessions any more."""
        self._full.pop(session, None)
        session.full = False
        self.count -= session.parked
        session.parked = 0
        self._stale = True
        if self._full:
            self._share_out()
            self._look(tuple(self._full))

    def _share_out(self) -> None:
        self._stale = False
        self._reserve = self._bound // 2 // max(1, len(self._sessions))
        self._unused = sum(max(0, self._reserve - session.parked) for session in self._sessions)

    def _look(self, sessions: Collection[Session]) -> None:
        for session in sessions:
            # A full one must fall an eighth below before it goes on: not to and fro with each record.
            eighths = 7 if session.full else 8
            at = self._bound * eighths
            full = self.count * 8 >= at or (
                (self.count + self._unused) * 8 >= at and session.parked * 8 >= self._reserve * eighths
            )
            if full != session.full:
                session.full = full
                if full:
                    self._full[session] = None
                else:
                    del self._full[session]
                self._on_change(session)
