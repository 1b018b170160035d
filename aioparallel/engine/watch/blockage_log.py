"""Logs handlers that block the event loop, with a limit on the number of lines, and remembers them for health."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from aioparallel.engine.watch.blockages import Blockage
from aioparallel.engine.watch.stack_sampling import format_stack
from aioparallel.observe.record_logging import coordinates

__all__ = ["BlockageLog", "WorstBlockage"]

logger = logging.getLogger(__name__)

# Seconds between two lines about one handler.
_PAUSE: Final = 10.0
_HANDLERS: Final = 1_000  # the most handlers that are remembered
# How many seconds a blockage is remembered, and the most that are.
_REMEMBERED, _MOST = 60.0, 200
# Seconds from which a blockage is a health problem; shorter ones are only logged. The measured time may be half a ping
# interval too short, so this is less than 0.25 s.
_WORTH: Final = 0.2


class WorstBlockage(NamedTuple):
    """The longest recent blockage of one handler, or of other code."""

    blockage: Blockage
    times: int


class _Logged:
    """What was logged about one handler."""

    __slots__ = ("at", "left_out", "since")

    def __init__(self) -> None:
        self.at = -_PAUSE
        self.since = -1.0  # when the last logged blockage began
        self.left_out = 0


class BlockageLog:
    """Logs a line for each blockage, at most one in ten seconds for each handler, with the number of lines left out.
    Remembers the blockages of the last minute. Times are in seconds, from any one clock.

    One thread writes, any may read: tuples are replaced, never changed.
    """

    def __init__(self) -> None:
        self._logged: dict[str, _Logged] = {}
        self._ended: tuple[Blockage, ...] = ()
        self._current: tuple[Blockage, ...] = ()
        self.count = 0
        """How many have ended."""
        self.seconds = 0.0
        """Their seconds."""

    def goes_on(self, blockage: Blockage, now: float) -> None:
        """Report a long blockage that has not ended."""
        self._current = (blockage,)
        self._log(blockage, now, "has blocked the event loop for %.3g s and still does")

    def ended(self, blockages: Sequence[Blockage], now: float) -> None:
        """Report the blockages that have ended since the last call. Those that were logged before are not logged
        again. Older ones than a minute are forgotten, and with them their records."""
        recent = [one for one in self._ended if now - one.until <= _REMEMBERED]
        self._ended = (*recent, *blockages)[-_MOST:]
        self._current = ()
        self.count += len(blockages)
        self.seconds += sum([blockage.seconds for blockage in blockages])
        for blockage in blockages:
            self._log(blockage, now, "blocked the event loop for %.3g s")

    def forget(self) -> None:
        """Forget all blockages."""
        self._ended = self._current = ()

    def worst(self, now: float) -> list[WorstBlockage]:
        """Return the longest blockage of each handler, the longest first."""
        found: dict[str | None, WorstBlockage] = {}
        for blockage in (*self._ended, *self._current):
            if now - blockage.until > _REMEMBERED or blockage.seconds < _WORTH:
                continue
            name = blockage.sample.handler if blockage.sample.record is not None else None
            longest, times = found.get(name, (blockage, 0))
            found[name] = WorstBlockage(max(blockage, longest, key=lambda one: one.seconds), times + 1)
        return sorted(found.values(), key=lambda worst: -worst.blockage.seconds)

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
        if handler not in self._logged and len(self._logged) >= _HANDLERS:
            self._logged.clear()
        return self._logged.setdefault(handler, _Logged())


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
        "long, or move it into a plain function for in_threads() (documentation: Blocking functions); it was at\n%s",
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
