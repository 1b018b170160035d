"""Whose turn it is: sessions with something ready, one after the other."""

from __future__ import annotations

from collections import deque

from aioparallel.engine.session import Session

__all__ = ["Turns"]


class Turns:
    """Sessions take turns; one that holds more than its share of the ``slots`` lets the others go first. So a topic
    whose handlers hang takes no more than its part from those that are well.

    It holds those sessions that have something ready, and no others, but for the one whose turn it is.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ring: deque[Session] = deque()

    def __bool__(self) -> bool:
        return bool(self._ring)

    def join(self, session: Session) -> None:
        """It has something ready, and waits for its turn if it does not already."""
        if not session.in_ring:
            session.in_ring = True
            self._ring.append(session)

    def next(self) -> Session:
        """The session whose turn it is; to be put back with :meth:`join` if it has something ready then."""
        ring = self._ring
        count = len(ring)
        if count > 1:
            for _ in range(count):
                if ring[0].in_flight * count <= self._slots:
                    break
                ring.rotate(-1)
        session = ring.popleft()
        session.in_ring = False
        return session

    def leave(self, session: Session) -> None:
        """It has nothing ready any more."""
        if session.in_ring:
            session.in_ring = False
            self._ring.remove(session)
