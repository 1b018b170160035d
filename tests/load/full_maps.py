"""Sessions whose offset maps are as large as a commit's metadata lets them be, without the millions of records."""

from __future__ import annotations

import random

from aioparallel.engine.client import Generation
from aioparallel.engine.session import Session, SessionState
from aioparallel.offsets import Ledger
from aioparallel.records import TopicPartition

__all__ = ["full_map_sessions"]

# Offsets of which each second one, at random, is complete: a bit each, 4,000 characters in the Java formats.
_BITS = 24_000
# Incomplete offsets with random gaps of up to 8,192 between them: about 13 bits each, 4,000 characters in Dense.
_SPARSE = 4_400
_GAP = 8_192


def full_map_sessions(topic: str, partitions: int, generation: Generation) -> list[Session]:
    """An open, dirty session of each partition; by turns with a map of bits and a sparse one."""
    ledgers = [_halves(_BITS), _sparse(_SPARSE)]
    sessions = []
    for partition in range(partitions):
        session = Session(TopicPartition(topic, partition), 1, generation)
        session.state = SessionState.OPEN
        # Committing only reads: all sessions of a kind can share their ledger, which saves most of a gigabyte.
        session.ledger = ledgers[partition % len(ledgers)]
        sessions.append(session)
    return sessions


def _halves(offsets: int) -> Ledger:
    chance, ledger = random.Random(1), Ledger(0)
    ledger.register(range(offsets), offsets)
    for offset in range(1, offsets):
        if chance.random() < 0.5:
            ledger.complete(offset)
    ledger.complete(next(reversed(ledger.incompletes)))
    return ledger


def _sparse(incompletes: int) -> Ledger:
    chance, ledger, offset = random.Random(2), Ledger(0), 0
    delivered = []
    for _ in range(incompletes):
        delivered.append(offset)
        offset += chance.randrange(1, _GAP)
    delivered.append(offset)
    ledger.register(delivered, offset + 1)
    ledger.complete(offset)
    return ledger
