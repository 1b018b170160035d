"""Logs that lost records: which part of what is known of a partition still holds (KIP-320).

After an unclean election, and in a topic that was made anew, the offsets of lost records are used again for other
records. What a commit or a ledger says of the lost ones must not count for those.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aioparallel.offsets import Ledger, OffsetMap

if TYPE_CHECKING:
    from aioparallel.group.sessions import Session

__all__ = ["Truncations", "ledger_below"]

logger = logging.getLogger(__name__)


class Truncations:
    """Counts logs that lost records, and says so."""

    def __init__(self) -> None:
        self.count = 0

    def told(self, session: Session, known_until: int, valid: int, start: int, what: str) -> None:
        """What was known of offsets ``valid`` to ``known_until``, if anything was, is dropped, and reading goes on at
        ``start``."""
        self.count += 1
        known = f": what was known of offsets {valid} to {known_until} is of records that are lost"
        text = f"{session.partition}: {what}{known if known_until >= valid else ''}. Going on at {start}"
        session.truncated = text, known_until
        logger.warning(
            "%s",
            text,
            extra={"action": "log_truncated", "valid": valid, "known_until": known_until, "start": start},
        )


def ledger_below(said: OffsetMap, end: int) -> Ledger:
    """The same as the map says, of offsets below ``end`` alone; reading begins at the first that is not complete."""
    if end <= said.base_offset:
        return Ledger(end)
    highest = min(said.highest_succeeded, end - 1)
    incompletes = tuple(offset for offset in said.incompletes if offset <= highest)
    return Ledger(said.base_offset, OffsetMap(said.base_offset, highest, incompletes))
