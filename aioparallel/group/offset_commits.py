"""What to commit: pure functions from assignments to commit requests.

:func:`ledger_snapshot` reads an assignment in one step without an ``await``, so offset and map belong together. (The
Java library read the offset before and after the encoding, and stored maps with the wrong base.) The map is encoded
from the snapshot only, so a thread may encode a large one while the assignment changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.group.leader_epochs import epoch_of
from aioparallel.offsets import OffsetMap, fit_offset_map
from aioparallel.records.record import TopicPartition

__all__ = ["LedgerSnapshot", "Sample", "WrittenMaps", "is_large", "ledger_snapshot", "requests", "sample", "split"]

# The most bytes of metadata in one request. The broker writes a request as one batch of the offsets topic. If that is
# too large, the whole request fails (measured on Apache Kafka 4.3.1: about 1 MB).
_REQUEST_BYTES = 512 * 1024
# If a request has more bytes of metadata than this, an unknown server error means "too large". Apache Kafka 4.3 has no
# better answer to a batch that is larger than its offsets topic accepts (1 MB by default, measured). If the error
# counted as temporary, the request would be repeated for ever. If it counts as too large, the texts shrink until it
# fits. The same error for a small request stays retriable.
_LARGE_REQUEST: Final = 64 * 1024
# Bytes of one partition in a request, without its text (a generous estimate).
_PARTITION_BYTES = 64

# From so many incomplete offsets on, a map may take more than a few milliseconds to write (measured: 10 to 60 ms if it
# must be cut). If the map spans more than _FAR offsets, because a record is stuck, _MANY_FAR is enough.
_MANY: Final = 16_000
_MANY_FAR: Final = 1_000
_FAR: Final = 1_000_000


class LedgerSnapshot(NamedTuple):
    """The ledger of one assignment at one moment."""

    assignment: Assignment
    map: OffsetMap
    version: tuple[int, int]
    epochs: tuple[tuple[int, int], ...] = ()
    """Pairs of first offset and leader epoch, both ascending."""
    topic_id: bytes = b""

    @property
    def is_large(self) -> bool:
        """Whether writing the map may take more than a few milliseconds."""
        many = len(self.map.incompletes)
        return many > _MANY or (many > _MANY_FAR and self.map.highest_succeeded - self.map.base_offset > _FAR)


class Sample(NamedTuple):
    """The position to commit for one assignment, and the version of its ledger."""

    assignment: Assignment
    committed: Committed
    version: tuple[int, int]
    highest: int
    """The highest offset in the map; base - 1 without a map."""
    cut: bool
    """Whether the map leaves out completed offsets above ``highest``."""


def ledger_snapshot(assignment: Assignment) -> LedgerSnapshot:
    """Read the offset and map of an assignment."""
    return LedgerSnapshot(
        assignment,
        assignment.ledger.snapshot(),
        assignment.ledger.version,
        assignment.leader_epochs.seen,
        assignment.topic_id,
    )


def sample(what: LedgerSnapshot, limit: int, formats: Literal["all", "java"]) -> Sample:
    """Encode the offset map. ``limit``: how many characters of metadata the broker accepts. It does not read the
    assignment, so any thread may call it."""
    base, highest = what.map.base_offset, what.map.highest_succeeded
    text, reached = fit_offset_map(base, highest, what.map.incompletes, limit=limit, formats=formats)
    committed = Committed(base, text, epoch_of(what.epochs, max(base - 1, reached)), what.topic_id)
    return Sample(what.assignment, committed, what.version, reached, cut=reached < highest)


def requests(samples: Iterable[Sample]) -> Iterator[tuple[Generation, list[Sample]]]:
    """Group samples into commit requests: each has one generation, and no more metadata than the broker accepts.

    First positions come first, because their order matters (:mod:`~aioparallel.group.turns`). They are in one
    request unless there are thousands.
    """
    by_generation: dict[Generation, list[Sample]] = {}
    for one in sorted(samples, key=lambda one: one.assignment.acknowledged is not None):
        by_generation.setdefault(one.assignment.generation, []).append(one)
    for generation, group in by_generation.items():
        part: list[Sample] = []
        left = _REQUEST_BYTES
        for one in group:
            size = _PARTITION_BYTES + _encoded_size(one.committed.metadata)
            if part and size > left:
                yield generation, part
                part, left = [], _REQUEST_BYTES
            part.append(one)
            left -= size
        yield generation, part


def split(positions: Mapping[TopicPartition, Committed]) -> Iterator[dict[TopicPartition, Committed]]:
    """Positions in parts that are small enough for one request."""
    part: dict[TopicPartition, Committed] = {}
    left = _REQUEST_BYTES
    for partition, position in positions.items():
        size = _PARTITION_BYTES + _encoded_size(position.metadata)
        if part and size > left:
            yield part
            part, left = {}, _REQUEST_BYTES
        part[partition] = position
        left -= size
    if part:
        yield part


def is_large(positions: Iterable[Committed]) -> bool:
    """Return whether a request with these positions may be too large, if it fails without a reason."""
    return sum(len(committed.metadata.encode()) for committed in positions) > _LARGE_REQUEST


def _encoded_size(text: str) -> int:
    return len(text) if text.isascii() else 3 * len(text)


class WrittenMaps:
    """Counts the offset maps written for commits, and the seconds that this took. An empty one counts as well."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def wrote(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds


class MetadataLimit:
    """How many characters of metadata the broker accepts: Kafka's default until the broker refuses a text."""

    DEFAULT = 4096

    def __init__(self) -> None:
        self.characters = self.DEFAULT
        self._accepted = 0

    def accepted(self, length: int) -> None:
        """Note that the broker accepted a text of this length."""
        self._accepted = max(self._accepted, length)

    def refused(self, length: int) -> None:
        """Lower the limit to half of this length, which was too large, or to what was accepted before."""
        if not length:
            return  # an empty text cannot be too large
        if length > self._accepted:
            self.characters = min(self.characters, max(length // 2, self._accepted))
        else:
            # It was accepted before, so the broker's setting was lowered.
            self._accepted = 0
            self.characters = min(self.characters, length // 2)
