"""The bound of parked records: which partitions start nothing new because too many of theirs wait for a retry.

A service that is down makes every record of some topic fail. Without a bound, memory fills with parked records; with
one bound for all, the topics that are well stop with it. So half of the bound is free for all, and of the other half
each session has its share: a session beyond its share is *full* while more than the free half is parked. A full
session starts retries only. At the bound itself all are full.
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
        self._free = bound // 2
        self._sessions = sessions
        self._on_change = on_change
        self._full: set[Session] = set()
        self.count = 0

    def join(self, session: Session) -> None:
        """The session is new. At the bound it is full at once, or each new one would park another pool's worth."""
        if self.count >= self._bound:
            self._look((session,))

    def enter(self, session: Session) -> None:
        """One record of this session is parked."""
        session.parked += 1
        self.count += 1
        if self.count >= self._free:
            self._look(self._sessions if self.count >= self._bound else (session,))

    def leave(self, session: Session, count: int = 1) -> None:
        """So many records of this session are parked no more."""
        session.parked -= count
        self.count -= count
        if self._full:
            self._look(tuple(self._full))

    def forget(self, session: Session) -> None:
        """The session is dropped, with all that it has parked."""
        self._full.discard(session)
        session.full = False
        self.leave(session, session.parked)

    def _look(self, sessions: Collection[Session]) -> None:
        share = max(1, self._free // max(1, len(self._sessions)))
        for session in sessions:
            # A full one must fall an eighth below before it goes on: not to and fro with each record.
            eighths = 7 if session.full else 8
            full = self.count * 8 >= self._bound * eighths or (
                self.count * 8 >= self._free * eighths and session.parked * 8 >= share * eighths
            )
            if full != session.full:
                session.full = full
                (self._full.add if full else self._full.discard)(session)
                self._on_change(session)
