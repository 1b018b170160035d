"""Log lines about handlers that hold the event loop, and how many of them."""

from __future__ import annotations

import logging
from typing import Final

from aioparallel.engine.holds import Hold
from aioparallel.engine.standing import text_of
from aioparallel.record_logging import coordinates

__all__ = ["HoldLog"]

logger = logging.getLogger(__name__)

# Seconds between two lines about one handler.
_PAUSE: Final = 10.0
_HANDLERS: Final = 1_000  # remembered at most


class _Told:
    """What was told of one handler."""

    __slots__ = ("at", "left_out", "since")

    def __init__(self) -> None:
        self.at = -_PAUSE
        self.since = -1.0  # of the hold that was told last
        self.left_out = 0


class HoldLog:
    """A line for each hold, at most one in ten seconds for each handler, with the number left out. Times are of any one
    clock, in seconds."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def goes_on(self, hold: Hold, now: float) -> None:
        """It has lasted long, and has not ended."""
        self._tell(hold, now, "holds the event loop, for %.3g s now, and goes on")

    def ended(self, hold: Hold, now: float) -> None:
        """The loop has turned again."""
        self._tell(hold, now, "held the event loop for %.3g s")

    def _tell(self, hold: Hold, now: float, what: str) -> None:
        told = self._of(hold.look.handler)
        if told.since == hold.since:
            return  # it was told while it went on
        told.since = hold.since
        if now - told.at < _PAUSE:
            told.left_out += 1
            return
        more = f" ({told.left_out} more lines about it left out)" if told.left_out else ""
        told.at, told.left_out = now, 0
        _write(hold, what % hold.seconds, more)

    def _of(self, handler: str) -> _Told:
        told = self._told.get(handler)
        if told is None:
            if len(self._told) >= _HANDLERS:
                self._told.clear()
            told = self._told[handler] = _Told()
        return told


def _write(hold: Hold, what: str, more: str) -> None:
    look, record = hold.look, hold.look.record
    stack = text_of(look.stack)
    if record is None:
        logger.warning(
            "something that is no handler %s%s: meanwhile no record went on, and no heartbeat was sent; it stood %s",
            what,
            more,
            f"at\n{stack}" if stack else "in no line of Python: a callback of the loop that is written in C",
            extra={"action": "loop_held", "seconds": hold.seconds},
        )
        return
    logger.warning(
        "%s: its handler %s %s%s: meanwhile no other record went on, and no heartbeat was sent; let it await what "
        "takes long, or move that into a plain function for in_threads() (docs/blocking.md); it stood at\n%s",
        record.place,
        look.handler,
        what,
        more,
        stack,
        extra={
            "action": "loop_held",
            **coordinates(record),
            "handler": look.handler,
            "seconds": hold.seconds,
        },
    )
