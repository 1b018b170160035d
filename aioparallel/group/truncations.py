"""Logs that have lost records: which part of a ledger is still valid (KIP-320).

After an unclean leader election, and in a topic that was deleted and created again, new records get the offsets of lost
records. What a commit or a ledger says about the lost records must not count for the new ones.
"""

from __future__ import annotations

import logging

from aioparallel.group.assignment import Assignment
from aioparallel.offsets import Ledger, OffsetMap
from aioparallel.records.errors import OffsetOutOfRange, PositionOutsideLog
from aioparallel.records.record import TopicPartition

__all__ = ["CREATED_AGAIN", "Truncations", "ledger_below"]

logger = logging.getLogger(__name__)

CREATED_AGAIN = "its topic was deleted and created again"
"""Why a log has lost records."""


class Truncations:
    """Counts and reports logs that have lost records. Such a log ends the run if ``refuses``, because other data is
    stored with the positions, or if ``is_error``, because of ``auto_offset_reset="error"``."""

    def __init__(self, refuses: bool = False, is_error: bool = False) -> None:
        self.refuses = refuses
        self._is_error = is_error
        self.count = 0

    def allow(self, partition: TopicPartition, offset: int) -> None:
        """Raises PositionOutsideLog or OffsetOutOfRange if a position that the log does not hold ends the run."""
        if self.refuses:
            raise PositionOutsideLog(partition, offset)
        if self._is_error:
            raise OffsetOutOfRange(partition, offset)

    def report(self, assignment: Assignment, known_until: int, valid: int, start: int, what: str) -> None:
        """Log and count that the log of an assignment has lost records. The assignment continues at ``start``.

        ``what``: the cause. The ledger had offsets up to ``known_until``; those from ``valid`` on are lost. If
        ``known_until`` is below ``valid``, it had none of the lost ones.
        """
        self.count += 1
        known = f": the records that were read or committed at offsets {valid} to {known_until} are lost"
        text = f"{assignment.partition}: {what}{known if known_until >= valid else ''}. Continuing at {start}"
        assignment.truncated = text, known_until
        logger.warning(
            "%s",
            text,
            extra={"action": "log_truncated", "valid": valid, "known_until": known_until, "start": start},
        )


def ledger_below(snapshot: OffsetMap, end: int) -> Ledger:
    """Return a ledger with the part of the map below ``end``."""
    if end <= snapshot.base_offset:
        return Ledger(end)
    highest = min(snapshot.highest_succeeded, end - 1)
    incompletes = tuple(offset for offset in snapshot.incompletes if offset <= highest)
    return Ledger(snapshot.base_offset, OffsetMap(snapshot.base_offset, highest, incompletes))
