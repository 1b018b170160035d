"""Whether outputs can be sent at all: no broker answers, or this user is refused."""

from __future__ import annotations

import logging
from typing import Final

from aioparallel.errors import AioparallelError
from aioparallel.observe.health import Problem, ProblemKind

__all__ = ["Trouble"]

logger = logging.getLogger(__name__)

_PATIENCE: Final = 3.0
"""Seconds that an attempt may take without being a problem."""
_PAUSE: Final = 5.0
"""Seconds between two lines in the log."""


class Trouble:
    """From the first attempt that fails to the next one that succeeds, whether or not somebody waits for it: what
    made it fail may well be there still.

    ``servers``: how messages name the cluster. ``now``: seconds, on the event loop's clock.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._since: float | None = None
        self._reason = ""
        self._may_pass = True
        self._told = float("-inf")

    def trying(self, now: float) -> None:
        """An attempt begins."""
        if self._since is None:
            self._since = now

    def failed(self, error: Exception, now: float) -> None:
        """It has failed."""
        self.trying(now)
        self._reason = str(error) or type(error).__name__
        # A coordinator that loads, a broker that has just started: most of it is over in a moment.
        self._may_pass = isinstance(error, OSError | TimeoutError) and not isinstance(error, AioparallelError)
        if now - self._told < _PAUSE or self._is_young(now):
            return
        self._told = now
        # What has no sentence of its own is nobody's plan: its traceback tells where.
        unexpected = not isinstance(error, OSError | TimeoutError | AioparallelError)
        logger.log(
            logging.ERROR if unexpected else logging.WARNING,
            "Nothing can be sent to %s: %s; trying on",
            self._servers,
            self._reason,
            exc_info=error if unexpected else None,
            extra={"action": "producer_unreachable"},
        )

    def passed(self) -> None:
        """It has succeeded."""
        self._since = None
        self._reason = ""
        self._may_pass = True

    def _is_young(self, now: float) -> bool:
        return self._may_pass and self._since is not None and now - self._since < _PATIENCE

    def problems(self, now: float) -> tuple[Problem, ...]:
        """What somebody should look at, if anything."""
        if self._since is None:
            return ()
        if self._is_young(now):
            return ()
        seconds = now - self._since
        reason = self._reason or "no broker has answered yet"
        message = f"nothing could be sent to {self._servers} for {seconds:.0f} s: {reason}"
        return (Problem(ProblemKind.PRODUCER_UNREACHABLE, message),)
