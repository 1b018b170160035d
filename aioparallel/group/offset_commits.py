"""What to commit: plain functions from sessions to requests. No I/O.

:func:`ledger_snapshot` reads a session in one step without an ``await``, so offset and map belong together. (The Java
library sampled the offset twice around the encoding, and stored maps under the wrong base.) The map is written from the
snapshot alone, so a thread may write a large one while the session goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from aioparallel.group.client import Committed, Generation
from aioparallel.group.leader_epochs import epoch_of
from aioparallel.group.sessions import Session
from aioparallel.offsets import OffsetMap, fit_offset_map

__all__ = ["LedgerSnapshot", "Sample", "is_large", "ledger_snapshot", "requests", "sample"]

# Bytes of metadata in one request. The broker writes a request as one batch of the offsets topic and fails a
# larger one as a whole (measured on Apache Kafka 4.3.1: about 1 MB).
_REQUEST_BYTES = 512 * 1024
# Bytes of metadata in one request from which an unknown server error means "too large". Apache Kafka 4.3 answers a
# batch larger than its offsets topic takes (1 MB by default) with nothing better (measured). Taken for something that
# passes, such a request would be repeated for ever; taken for too large, the texts shrink until it fits. A transient
# server error under a small request stays retriable.
_LARGE_REQUEST: Final = 64 * 1024
# What one partition takes in a request beside its text (bytes, generous).
_PARTITION_BYTES = 64


# Incompletes from which a map may take more than a few milliseconds to write (measured: 10 to 60 ms where it must be
# cut); fewer of them where offsets reach far, behind a stuck record.
_MANY: Final = 16_000
_MANY_FAR: Final = 1_000
_FAR: Final = 1_000_000


class LedgerSnapshot(NamedTuple):
    """The ledger of one session at one moment."""

    session: Session
    map: OffsetMap
    version: tuple[int, int]
    epochs: tuple[tuple[int, int], ...] = ()
    """See :attr:`LeaderEpochs.seen <aioparallel.group.leader_epochs.LeaderEpochs.seen>`."""
    topic_id: bytes = b""

    @property
    def is_large(self) -> bool:
        """Whether writing the map may take more than a few milliseconds."""
        many = len(self.map.incompletes)
        return many > _MANY or (many > _MANY_FAR and self.map.highest_succeeded - self.map.base_offset > _FAR)


class Sample(NamedTuple):
    """The position that one session would commit, and the version of its ledger."""

    session: Session
    committed: Committed
    version: tuple[int, int]
    highest: int
    """The highest offset in the map; base - 1 without a map."""
    cut: bool
    """Whether the map leaves out completed offsets above ``highest``."""


def ledger_snapshot(session: Session) -> LedgerSnapshot:
    """Read offset and map of a session."""
    return LedgerSnapshot(
        session, session.ledger.snapshot(), session.ledger.version, session.leader_epochs.seen, session.topic_id
    )


def sample(what: LedgerSnapshot, limit: int, formats: Literal["all", "java"]) -> Sample:
    """Write the offset map. ``limit``: characters of metadata that the broker accepts. It does not read the session, so
    any thread may call it."""
    base, highest = what.map.base_offset, what.map.highest_succeeded
    text, reached = fit_offset_map(base, highest, what.map.incompletes, limit=limit, formats=formats)
    committed = Committed(base, text, epoch_of(what.epochs, max(base - 1, reached)), what.topic_id)
    return Sample(what.session, committed, what.version, reached, cut=reached < highest)


def requests(samples: Iterable[Sample]) -> Iterator[tuple[Generation, list[Sample]]]:
    """Group samples into commit requests: one generation each, and no more metadata than one may carry. First positions
    come first, in one request unless they are thousands: their order matters
    (:mod:`~aioparallel.group.first_order`)."""
    by_generation: dict[Generation, list[Sample]] = {}
    for one in sorted(samples, key=_has_committed):
        by_generation.setdefault(one.session.generation, []).append(one)
    for generation, group in by_generation.items():
        part: list[Sample] = []
        room = _REQUEST_BYTES
        for one in group:
            size = _PARTITION_BYTES + _encoded_size(one.committed.metadata)
            if part and size > room:
                yield generation, part
                part, room = [], _REQUEST_BYTES
            part.append(one)
            room -= size
        yield generation, part


def _has_committed(one: Sample) -> bool:
    return one.session.acknowledged is not None


def is_large(positions: Iterable[Committed]) -> bool:
    """Whether one request with these may be larger than the broker takes, if it says no without saying why."""
    return sum(len(committed.metadata.encode()) for committed in positions) > _LARGE_REQUEST


def _encoded_size(text: str) -> int:
    return len(text) if text.isascii() else 3 * len(text)


class MetadataLimit:
    """How many characters of metadata the broker takes: Kafka's default until a refusal tells less."""

    DEFAULT = 4096

    def __init__(self) -> None:
        self.characters = self.DEFAULT
        self._accepted = 0

    def accepted(self, length: int) -> None:
        """A text of this length was taken."""
        self._accepted = max(self._accepted, length)

    def refused(self, length: int) -> None:
        """A text of this length was too large: believe in half of it, or in what was once taken."""
        if not length:
            return  # no text at all cannot be it
        if length > self._accepted:
            self.characters = min(self.characters, max(length // 2, self._accepted))
        else:
            # It was taken once: the broker's setting was lowered meanwhile.
            self._accepted = 0
            self.characters = min(self.characters, length // 2)
