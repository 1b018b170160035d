"""Filters aiokafka's log lines that mean nothing to the user.

aiokafka logs events of every healthy group as WARNING or ERROR: a coordinator that is being elected for a new group, a
heartbeat that reports a rebalance, a leader that has moved. Without a logging configuration Python prints these to
stderr, and the first start looks like a failure. So the first client to start adds a filter to aiokafka's loggers,
permanently and for the whole process. It changes only known lines:

* Events of normal operation become DEBUG.
* Failures that the client repairs by retrying become WARNING instead of ERROR, once in five seconds, and DEBUG in
  between. If a retry does not help (a refused login), they stay ERROR, as often.
* Requests that log in are dropped, see ``security``: aiokafka logs each request at DEBUG, including the password.

Everything else passes unchanged. The client raises failures that need attention in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from aioparallel.config.security.secret import suppress_login_logs

__all__ = ["KnownLines", "calm"]

LOGGERS: Final = (
    "aiokafka",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
)
"""A filter applies only to its own logger, not to the loggers below it."""

NORMAL: Final[Mapping[str, int]] = {
    # A rebalance, as members notice it. This package logs membership itself.
    "Heartbeat failed for group %s because it is rebalancing": logging.DEBUG,
    "Heartbeat failed for group %s: generation id is not  current.": logging.DEBUG,
    "Heartbeat failed: local member_id was not recognized; resetting and re-joining group": logging.DEBUG,
    # A coordinator that moves or is being elected.
    "Group Coordinator Request failed: %s": logging.DEBUG,
    "Heartbeat failed for group %s: coordinator (node %s) is either not started or not valid": logging.DEBUG,
    "Marking the coordinator dead (node %s)for group %s.": logging.DEBUG,
    # A topic that has just been created.
    "Topic %s is not available during auto-create initialization": logging.DEBUG,
    # The engine handles OffsetOutOfRange; aiokafka does not reset the offset here.
    "Fetch offset %s is out of range for partition %s, resetting offset": logging.DEBUG,
    # The code that needs the topic waits for it, and raises at last.
    "Topic %s not found in cluster metadata": logging.DEBUG,
    "Topic %s is not authorized for this client": logging.DEBUG,
    # Repaired by a retry.
    "Error sending %s to node %s [%s] -- marking coordinator dead": logging.WARNING,
    "Failed fetch messages from %s: %s": logging.WARNING,
    "Failed fetch offsets from %s: %s": logging.WARNING,
    "Heartbeat send request failed: %s. Will retry.": logging.WARNING,
    "Heartbeat session expired - marking coordinator dead": logging.WARNING,
    # Logged for each connection.
    "Sending username and password in the clear": logging.WARNING,
    "LeaveGroup request failed: %s": logging.WARNING,
    'Unable connect to "%s:%s": %s': logging.WARNING,
    "Unable connect to node with id %s: %s": logging.WARNING,
    "Unable to update metadata from %s": logging.WARNING,
    'Unable to request metadata from "%s:%s": %s': logging.WARNING,
}
"""aiokafka's messages before formatting, with the level they should have."""


_PAUSE: Final = 5.0
"""Seconds before a line about a retried failure is logged again: retries are frequent while a broker is away."""


class KnownLines(logging.Filter):
    """Sets the level of the lines in :data:`NORMAL`, and limits how often retried failures are logged."""

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.DEBUG:
            return True
        level = NORMAL.get(record.msg) if isinstance(record.msg, str) else None
        if level is None or level > record.levelno:
            return True
        is_retried = level == logging.WARNING
        if _is_real(record):
            level = record.levelno
        if is_retried and self._is_repetition(record):
            level = logging.DEBUG
        record.levelno, record.levelname = level, logging.getLevelName(level)
        return logging.getLogger(record.name).isEnabledFor(level)

    def _is_repetition(self, record: logging.LogRecord) -> bool:
        line = record.name, str(record.msg)
        if record.created - self._last_logged.get(line, 0.0) < _PAUSE:
            return True
        self._last_logged[line] = record.created
        return False


_KNOWN_LINES: Final = KnownLines()


def calm() -> None:
    """Add the filter to aiokafka's loggers. May be called again."""
    suppress_login_logs()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_KNOWN_LINES)


def _is_real(record: logging.LogRecord) -> bool:
    """Whether the failure is permanent, such as a missing permission."""
    errors = [arg for arg in record.args or () if isinstance(arg, Exception)]
    return record.levelno >= logging.ERROR and any(getattr(e, "retriable", True) is False for e in errors)
