"""Detects that no output can be sent at all: no broker answers, or the user is not authorised."""

from __future__ import annotations

import logging
from typing import Final

from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.errors import AioparallelError

__all__ = ["Trouble"]

logger = logging.getLogger(__name__)

_GRACE: Final = 3.0
"""Seconds before failing attempts count as a problem."""
_LOG_INTERVAL: Final = 5.0
"""Seconds between two log lines."""


class Trouble:
    """Lasts from the first failed attempt to the next successful one, even if no output waits meanwhile: the cause may
    persist.

    ``servers``: the cluster's name in messages. ``now``: seconds on the event loop's clock.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._since: float | None = None
        self._reason = ""
        self._may_pass = True
        self._last_logged = float("-inf")

    def trying(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def failed(self, error: Exception, now: float) -> None:
        self.trying(now)
        self._reason = str(error) or type(error).__name__
        # Usually short: a coordinator that is loading, or a broker that has just started.
        self._may_pass = isinstance(error, OSError | TimeoutError) and not isinstance(error, AioparallelError)
        if now - self._last_logged < _LOG_INTERVAL or self._is_young(now):
            return
        self._last_logged = now
        # Log the traceback of an error that no code expects.
        unexpected = not isinstance(error, OSError | TimeoutError | AioparallelError)
        logger.log(
            logging.ERROR if unexpected else logging.WARNING,
            "Nothing can be sent to %s: %s; retrying",
            self._servers,
            self._reason,
            exc_info=error if unexpected else None,
            extra={"action": "producer_unreachable"},
        )

    def passed(self) -> None:
        self._since = None
        self._reason = ""
        self._may_pass = True

    def _is_young(self, now: float) -> bool:
        return self._may_pass and self._since is not None and now - self._since < _GRACE

    def problems(self, now: float) -> tuple[Problem, ...]:
        if self._since is None or self._is_young(now):
            return ()
        seconds = now - self._since
        reason = self._reason or "no broker has answered yet"
        message = f"nothing could be sent to {self._servers} for {seconds:.0f} s: {reason}"
        return (Problem(ProblemKind.PRODUCER_UNREACHABLE, message),)
