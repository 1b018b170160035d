"""Logs handlers that block the event loop, with a limit on the number of lines."""

from __future__ import annotations

import logging
from typing import Final

from aioparallel.engine.watch.blockages import Blockage
from aioparallel.engine.watch.stack_sampling import format_stack
from aioparallel.observe.record_logging import coordinates

__all__ = ["BlockageLog"]

logger = logging.getLogger(__name__)

# Seconds between two lines about one handler.
_PAUSE: Final = 10.0
_HANDLERS: Final = 1_000  # the most handlers that are remembered


class _Logged:
    """What was logged about one handler."""

    __slots__ = ("at", "left_out", "since")

    def __init__(self) -> None:
        self.at = -_PAUSE
        self.since = -1.0  # when the last logged blockage began
        self.left_out = 0


class BlockageLog:
    """Logs a line for each blockage, at most one in ten seconds for each handler, with the number of lines left out.
    Times are in seconds, from any one clock."""

    def __init__(self) -> None:
        self._logged: dict[str, _Logged] = {}

    def goes_on(self, blockage: Blockage, now: float) -> None:
        """Log a long blockage that has not ended."""
        self._log(blockage, now, "has blocked the event loop for %.3g s and still does")

    def ended(self, blockage: Blockage, now: float) -> None:
        """Log a blockage that has ended, unless it was logged before."""
        self._log(blockage, now, "blocked the event loop for %.3g s")

    def _log(self, blockage: Blockage, now: float, what: str) -> None:
        logged = self._of(blockage.sample.handler)
        if logged.since == blockage.since:
            return
        logged.since = blockage.since
        if now - logged.at < _PAUSE:
            logged.left_out += 1
            return
        more = f" ({logged.left_out} more lines about it left out)" if logged.left_out else ""
        logged.at, logged.left_out = now, 0
        _write(blockage, what % blockage.seconds, more)

    def _of(self, handler: str) -> _Logged:
        logged = self._logged.get(handler)
        if logged is None:
            if len(self._logged) >= _HANDLERS:
                self._logged.clear()
            logged = self._logged[handler] = _Logged()
        return logged


def _write(blockage: Blockage, what: str, more: str) -> None:
    sample, record = blockage.sample, blockage.sample.record
    stack = format_stack(sample.stack)
    if record is None:
        logger.warning(
            "code outside of handlers %s%s: no record progressed and no heartbeat was sent in that time; it was %s",
            what,
            more,
            f"at\n{stack}" if stack else "in no line of Python: a callback of the loop that is written in C",
            extra={"action": "loop_held", "seconds": blockage.seconds},
        )
        return
    logger.warning(
        "%s: its handler %s %s%s: no other record progressed and no heartbeat was sent in that time; await what takes "
        "long, or move it into a plain function for in_threads() (docs/blocking.md); it was at\n%s",
        record.place,
        sample.handler,
        what,
        more,
        stack,
        extra={
            "action": "loop_held",
            **coordinates(record),
            "handler": sample.handler,
            "seconds": blockage.seconds,
        },
    )
