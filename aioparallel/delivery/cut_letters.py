"""Dead letters without all of their record: counted, and told in the log."""

from __future__ import annotations

import logging
from typing import Any

from aioparallel.delivery.letters import LeftOut
from aioparallel.record_logging import coordinates
from aioparallel.records import Outgoing, Record

__all__ = ["CutLetters"]

logger = logging.getLogger(__name__)


class CutLetters:
    """Those of one consumer, or one tracker."""

    def __init__(self) -> None:
        self.count = 0
        """So far."""

    def note(self, record: Record[Any, Any], letter: Outgoing) -> None:
        """One more. Told at the first and tenth, then at each hundredth."""
        self.count += 1
        if self.count in (1, 10) or self.count % 100 == 0:
            logger.warning(
                "%s: its dead letter in %s is without a part of it (%s), which the topic does not take: "
                "`aioparallel dlq` reads that from where the record stands, while it does. To keep it, let the topic "
                "take larger records (max.message.bytes), and the producer (max_request_size); or hold such records "
                'with dead_letter_too_large="hold". %d so far',
                record.place,
                letter.topic,
                (dict(letter.headers).get(LeftOut.HEADER) or b"").decode(),
                self.count,
                extra={"action": "dead_letter_cut", **coordinates(record)},
            )
