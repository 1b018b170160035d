"""Counts and logs dead letters that do not contain all of their record."""

from __future__ import annotations

import logging
from typing import Any

from aioparallel.delivery.letters import LeftOut
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.record import Outgoing, Record

__all__ = ["CutLetters"]

logger = logging.getLogger(__name__)


class CutLetters:
    """The incomplete dead letters of one consumer or tracker."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, record: Record[Any, Any], letter: Outgoing) -> None:
        """Count one more. The first, the tenth and each hundredth are logged."""
        self.count += 1
        if self.count in (1, 10) or self.count % 100 == 0:
            logger.warning(
                "%s: its dead letter in %s lacks a part of the record (%s), because the topic does not accept a larger "
                "one: `aioparallel dlq` reads the missing part from the record's own topic, as long as it is there. To "
                "keep it, let the topic (max.message.bytes) and the producer (max_request_size) accept larger records; "
                'or hold such records with dead_letter_too_large="hold". %d so far',
                record.place,
                letter.topic,
                (dict(letter.headers).get(LeftOut.HEADER) or b"").decode(),
                self.count,
                extra={"action": "dead_letter_cut", **coordinates(record)},
            )
