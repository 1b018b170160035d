"""When a run with ``until="end"`` is over: nothing is left to acquire, and everything is acknowledged.

A share group does not tell a member where its partitions end, and a record that is locked for another member may come
back. So the run is over after some quiet seconds, in which

* a fetch has waited for any record of all assigned partitions, of which none is paused, and none has come,
* the brokers have answered: a partition that cannot be read is not at its end,

while nothing was locked here, no acknowledgement was unanswered, and no record of an acknowledgement that may not have
arrived can come back, because its lock has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aioparallel.group.share_client import ShareClient
from aioparallel.observe.stats import Contact
from aioparallel.queues.share.acknowledging import Acknowledgements
from aioparallel.queues.share.acquiring import Acquirer
from aioparallel.queues.share.locks import Locks

__all__ = ["QUIET", "ShareEnds"]

QUIET: Final = 5.0
"""Seconds. A fetch is answered within half a second, and a record that is released comes at once."""
_INTERVAL: Final = 0.25
"""Seconds between two looks."""


class ShareEnds:
    """Calls ``on_end()`` when the run is over. ``is_idle()``: whether all admitted records have ended."""

    def __init__(
        self,
        client: ShareClient,
        acquirer: Acquirer,
        acknowledgements: Acknowledgements,
        locks: Locks,
        is_idle: Callable[[], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._client = client
        self._acquirer = acquirer
        self._acknowledgements = acknowledgements
        self._locks = locks
        self._is_idle = is_idle
        self._on_end = on_end

    async def run(self) -> None:
        """Look until the run is over."""
        while not self._is_over():
            await asyncio.sleep(_INTERVAL)
        self._on_end()

    def _is_over(self) -> bool:
        acquirer, acknowledgements = self._acquirer, self._acknowledgements
        if not acquirer.assigned or acquirer.is_excluding:
            return False
        if len(self._locks) or acknowledgements.unanswered or not self._is_idle():
            return False
        since = max(acquirer.disturbed_at, acknowledgements.again_at, acknowledgements.doubtful_until)
        return asyncio.get_running_loop().time() - since >= QUIET and _is_complete(self._client.contact())


def _is_complete(contact: Contact) -> bool:
    """Whether all brokers answer, and none with an error."""
    if contact.fetch is None or contact.fetch > QUIET or contact.leaderless or contact.missing or contact.failing:
        return False
    return all(broker.owes is None or broker.owes < QUIET / 2 for broker in contact.brokers)
