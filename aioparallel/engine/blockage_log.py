"""Logs handlers that block the event loop, with a limit on the number of lines."""

from __future__ import annotations

import logging
from typing import Final

from aioparallel.engine.blockages import Blockage
from aioparallel.engine.stack_sampling import format_stack
from aioparallel.record_logging import coordinates

__all__ = ["BlockageLog"]

logger = logging.getLogger(__name__)

# Seconds between two lines about one handler.
_PAUSE: Final = 10.0
_HANDLERS: Final = 1_000  # the most handlers that are remembered


class _Told:
    """What was logged about one handler."""

    __slots__ = ("at", "left_out", "since")

    def __init__(self) -> None:
        self.at = -_PAUSE
        self.since = -1.0  # of the blockage that was logged last
        self.left_out = 0


class BlockageLog:
    """Logs a line for each blockage, at most one in ten seconds for each handler, with the number left out. Times are
    seconds of any one clock."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def goes_on(self, blockage: Blockage, now: float) -> None:
        """It has lasted long, and has not ended."""
        self._tell(blockage, now, "holds the event loop, for %.3g s now, and goes on")

    def ended(self, blockage: Blockage, now: float) -> None:
        """The loop has turned again."""
        self._tell(blockage, now, "held the event loop for %.3g s")

    def _tell(self, blockage: Blockage, now: float, what: str) -> None:
        told = self._of(blockage.sample.handler)
        if told.since == blockage.since:
            return  # it was logged while it went on
        told.since = blockage.since
        if now - told.at < _PAUSE:
            told.left_out += 1
            return
        more = f" ({told.left_out} more lines about it left out)" if told.left_out else ""
        told.at, told.left_out = now, 0
        _write(blockage, what % blockage.seconds, more)

    def _of(self, handler: str) -> _Told:
        told = self._told.get(handler)
        if told is None:
            if len(self._told) >= _HANDLERS:
                self._told.clear()
            told = self._told[handler] = _Told()
        return told


def _write(blockage: Blockage, what: str, more: str) -> None:
    sample, record = blockage.sample, blockage.sample.record
    stack = format_stack(sample.stack)
    if record is None:
        logger.warning(
            "something that is no handler %s%s: meanwhile no record went on, and no heartbeat was sent; it stood %s",
            what,
            more,
            f"at\n{stack}" if stack else "in no line of Python: a callback of the loop that is written in C",
            extra={"action": "loop_held", "seconds": blockage.seconds},
        )
        return
    logger.warning(
        "%s: its handler %s %s%s: meanwhile no other record went on, and no heartbeat was sent; let it await what "
        "takes long, or move that into a plain function for in_threads() (docs/blocking.md); it stood at\n%s",
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
