"""Sessions with offset maps of some size, without the millions of records behind them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from aioparallel.cli.bench.map_times import PATTERNS
from aioparallel.group.client import Generation
from aioparallel.group.sessions import Session
from aioparallel.offsets import Ledger
from aioparallel.records import TopicPartition

__all__ = ["full_ledgers", "map_sessions", "pattern_ledgers"]

# Offsets of which each second one, at random, is complete: a bit each, 4,000 characters in the Java formats.
_BITS: Final = 24_000
# Incomplete offsets with random gaps of up to 8,192 between them: about 13 bits each, 4,000 characters in Dense.
_SPARSE: Final = 4_400
_GAP: Final = 8_192


def map_sessions(topic: str, partitions: int, generation: Generation, ledgers: Sequence[Ledger]) -> list[Session]:
    """An open, dirty session of each partition, with these ledgers by turns."""
    sessions = []
    for partition in range(partitions):
        session = Session(TopicPartition(topic, partition), 1, generation)
        session.opened = True
        # Committing only reads: all sessions of a kind can share their ledger, which saves most of a gigabyte.
        session.ledger = ledgers[partition % len(ledgers)]
        sessions.append(session)
    return sessions


def full_ledgers() -> list[Ledger]:
    """One whose map is of bits, one whose map is sparse; both take about 4,000 characters."""
    chance, offset, gaps = Random(2), 0, list[int]()
    for _ in range(_SPARSE):
        gaps.append(offset)
        offset += chance.randrange(1, _GAP)
    bits = PATTERNS["50 %"](Random(1), _BITS)
    return [ledger_of(bits, _BITS), _with_log_gaps(gaps, offset)]


def pattern_ledgers(offsets: int, seed: int) -> list[Ledger]:
    """One for each pattern of the time measurement."""
    return [ledger_of(make(Random(seed), offsets), offsets) for make in PATTERNS.values()]


def ledger_of(incompletes: Sequence[int], offsets: int) -> Ledger:
    """The first of so many offsets is incomplete, so that the map is about all of them, and the last is complete."""
    ledger, left = Ledger(0), {0, *incompletes} - {offsets - 1}
    ledger.register(range(offsets), offsets)
    for offset in range(offsets):
        if offset not in left:
            ledger.complete(offset)
    return ledger


def _with_log_gaps(incompletes: Sequence[int], last: int) -> Ledger:
    """Only these were delivered, and the last one, which is complete."""
    ledger = Ledger(0)
    ledger.register([*incompletes, last], last + 1)
    ledger.complete(last)
    return ledger
