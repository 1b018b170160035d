"""Logs while the group has not let this member in."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

__all__ = ["JoinLog"]

logger = logging.getLogger(__name__)

_FIRST: Final = 5.0
"""Seconds until the first line. A new group waits 3 s for more members (Kafka's group.initial.rebalance.delay.ms)."""
_INTERVAL: Final = 10.0
"""Seconds between two lines."""
_REASONS: Final = (
    ". A group waits for each member that was killed, or that left without a word, until its session times out, and "
    "for members that drain. (With group_instance_id, a classic group does not wait for one that comes back. The "
    "embedded broker, of `aioparallel broker` without --kafka, waits in a classic group for members that have left as "
    "well.)"
)


class JoinLog:
    """Logs at intervals until :meth:`stop`, which is called at the first assignment, or when the run ends."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The member begins to join now."""
        self._timer = asyncio.get_running_loop().call_later(_FIRST, self._log, _FIRST)

    def stop(self) -> None:
        """Log nothing more. May be called without :meth:`start`."""
        if self._timer is not None:
            self._timer.cancel()

    def _log(self, waited: float) -> None:
        logger.warning(
            "Group %s has not assigned partitions to this member for %.0f s%s",
            self._group_id,
            waited,
            _REASONS if waited == _FIRST else "",
            extra={"action": "waiting_for_group", "group_id": self._group_id, "seconds": waited},
        )
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._log, waited + _INTERVAL)
