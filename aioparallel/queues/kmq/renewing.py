"""Leases of records that wait for their handlers, or whose handlers were called late: renewed, so that each handler has
the whole lease to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from aioparallel.delivery.producer import PendingOutput
from aioparallel.queues.kmq.leases import Leased
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced

__all__ = ["Renewal", "Renewing"]

# Looks within the shortest lease that waits. A lease is renewed at its half, so two looks come before its end.
_LOOKS: Final = 4


class Renewal(PendingOutput):
    """A start marker of a record that has one: the lease ends at ``until``, once it is written."""

    __slots__ = ("_offset", "_source", "_until")

    def __init__(self, output: Outgoing, source: Leased, offset: int, until: float) -> None:
        super().__init__(output)
        self._source = source
        self._offset = offset
        self._until = until

    def placed(self, place: Produced) -> None:
        """See :class:`~aioparallel.delivery.producer.PendingOutput`."""
        leases = self._source.leases
        if self._offset in leases:
            leases[self._offset] = max(leases[self._offset], self._until)

    def failed(self, failure: ProduceFailed) -> None:
        """The lease is as it was."""


class Renewing:
    """Looks at what waits, and at what was called late, as long as there is something.

    ``renew(source, offset, seconds)`` writes a further start marker. ``may_start``: whether handlers start at
    all; while they do not, what waits is left to others. Made within the running loop.
    """

    def __init__(
        self,
        sources: Callable[[], Collection[Leased]],
        renew: Callable[[Leased, int, float], None],
        may_start: Callable[[], bool],
    ) -> None:
        self._sources = sources
        self._renew = renew
        self._may_start = may_start
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def wait(self, shortest: float) -> None:
        """Records wait now, or were called late, and so long is the shortest of their leases, in seconds."""
        due = self._loop.time() + shortest / _LOOKS
        if self._timer is not None and self._timer.when() <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look)

    def close(self) -> None:
        """The run ends: what has not begun is left to others."""
        self._is_closed = True

    def _look(self) -> None:
        self._timer = None
        now, shortest = self._loop.time(), None
        may_renew = self._may_start() and not self._is_closed
        for source in self._sources():
            for offset, (seconds, until) in source.waiting.items():
                left = source.leases[offset] - now
                if left <= 0 or now >= until or self._is_closed:
                    continue
                shortest = seconds if shortest is None else min(seconds, shortest)
                if may_renew and left < seconds / 2:
                    self._renew(source, offset, seconds)
            for offset, (seconds, until) in source.owed.items():
                left = source.leases[offset] - now
                if left <= 0 or source.leases[offset] >= until:
                    continue
                shortest = seconds if shortest is None else min(seconds, shortest)
                if left < seconds / 2:
                    self._renew(source, offset, until - now)
        if shortest is not None:
            self.wait(shortest)
