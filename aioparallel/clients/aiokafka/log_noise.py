"""aiokafka's loggers, without the lines that mean nothing to the user.

aiokafka reports what happens in any healthy group as WARNING or ERROR: a coordinator that is still being elected
when a group is new, a heartbeat that is told of a rebalance, a leader that has moved. Python prints these to stderr
when logging is not configured, and the first start looks like a failure. While the first client starts, a filter is put
on aiokafka's loggers, for good and for the whole process. It changes known lines only:

* what belongs to normal work becomes DEBUG;
* what the client mends itself (a request failed, it is sent again) becomes WARNING instead of ERROR, once in five
  seconds; in between it is DEBUG. Where trying again does not mend it (a refused login) it stays ERROR, as often.

* requests that log in are dropped, see ``security``: aiokafka logs each request at DEBUG, here with the password in it.

Everything else passes as it is. Failures that need somebody are raised from the client anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from aioparallel.security.secret import keep_logins_to_ourselves

__all__ = ["KnownLines", "calm"]

LOGGERS: Final = (
    "aiokafka",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
)
"""A filter sees only what is logged to its own logger, not to those below it."""

NORMAL: Final[Mapping[str, int]] = {
    # A rebalance, as the members hear of it. Membership is reported by this package.
    "Heartbeat failed for group %s because it is rebalancing": logging.DEBUG,
    "Heartbeat failed for group %s: generation id is not  current.": logging.DEBUG,
    "Heartbeat failed: local member_id was not recognized; resetting and re-joining group": logging.DEBUG,
    # A coordinator that moves, or is being elected.
    "Group Coordinator Request failed: %s": logging.DEBUG,
    "Heartbeat failed for group %s: coordinator (node %s) is either not started or not valid": logging.DEBUG,
    "Marking the coordinator dead (node %s)for group %s.": logging.DEBUG,
    # A topic that has just been created.
    "Topic %s is not available during auto-create initialization": logging.DEBUG,
    # Out of range is raised to the engine, which decides; aiokafka resets nothing here.
    "Fetch offset %s is out of range for partition %s, resetting offset": logging.DEBUG,
    # Waited for, and in the end raised, by whoever needs the topic.
    "Topic %s not found in cluster metadata": logging.DEBUG,
    "Topic %s is not authorized for this client": logging.DEBUG,
    # Mended by trying again.
    "Error sending %s to node %s [%s] -- marking coordinator dead": logging.WARNING,
    "Failed fetch messages from %s: %s": logging.WARNING,
    "Failed fetch offsets from %s: %s": logging.WARNING,
    "Heartbeat send request failed: %s. Will retry.": logging.WARNING,
    "Heartbeat session expired - marking coordinator dead": logging.WARNING,
    # Each connection says so anew.
    "Sending username and password in the clear": logging.WARNING,
    "LeaveGroup request failed: %s": logging.WARNING,
    'Unable connect to "%s:%s": %s': logging.WARNING,
    "Unable connect to node with id %s: %s": logging.WARNING,
    "Unable to update metadata from %s": logging.WARNING,
    'Unable to request metadata from "%s:%s": %s': logging.WARNING,
}
"""aiokafka's messages, before formatting, and the level they deserve."""


_PAUSE: Final = 5.0
"""Seconds until a line that is mended by trying again is worth telling anew: tries are many while a broker is away."""


class KnownLines(logging.Filter):
    """Gives the lines of :data:`NORMAL` their own level, and those that come again and again only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is still of interest, with its level lowered."""
        if record.levelno == logging.DEBUG:
            return True
        level = NORMAL.get(record.msg) if isinstance(record.msg, str) else None
        if level is None or level > record.levelno:
            return True
        is_tried_again = level == logging.WARNING
        if _is_real(record):
            level = record.levelno
        if is_tried_again and self._is_repetition(record):
            level = logging.DEBUG
        record.levelno, record.levelname = level, logging.getLevelName(level)
        return logging.getLogger(record.name).isEnabledFor(level)

    def _is_repetition(self, record: logging.LogRecord) -> bool:
        line = record.name, str(record.msg)
        if record.created - self._told.get(line, 0.0) < _PAUSE:
            return True
        self._told[line] = record.created
        return False


_KNOWN_LINES: Final = KnownLines()


def calm() -> None:
    """Put the filter on aiokafka's loggers. Once is enough; more often does no harm."""
    keep_logins_to_ourselves()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_KNOWN_LINES)


def _is_real(record: logging.LogRecord) -> bool:
    """A failed lookup is normal only where it passes: not for a user without permission."""
    errors = [arg for arg in record.args or () if isinstance(arg, Exception)]
    return record.levelno >= logging.ERROR and any(getattr(e, "retriable", True) is False for e in errors)
