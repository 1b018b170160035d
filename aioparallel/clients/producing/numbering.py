"""The numbers of one partition's batches, by which a broker deduplicates and fences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["Identity", "Numbering"]

_SEQUENCES: Final = 2**31
"""Sequence numbers run from 0 to this limit, exclusive, and wrap around."""
_LAST_EPOCH: Final = 2**15 - 1
_WORN_EPOCH: Final = 30_000
"""From this epoch on, the producer id is replaced at the next acknowledgement. Nothing is in doubt at that point, so
nothing remains that only a higher epoch of the same id could fence."""


class Identity(NamedTuple):
    """A producer id and epoch, as the broker knows this producer."""

    producer_id: int
    epoch: int


@dataclass(eq=False, slots=True)
class Numbering:
    """Producer id, epoch and sequence number of one partition's next batch.

    Brokers check each batch per producer id and partition (KIP-98, KIP-360):

    - A batch is written if its sequence number follows the last one.
    - A batch with the numbers of a written batch counts as a duplicate, and is not written again.
    - A new epoch begins with sequence number 0. Afterwards, batches with an older epoch are refused.

    A number may therefore be reused only if the last batch was certainly not written. If that cannot be known, the
    epoch is raised. The old batch can no longer be written once the first batch of the new epoch is written. The epoch
    belongs to this partition alone: no broker is asked for it, and other partitions are not affected.

    In transactions, the coordinator assigns an epoch to each transaction (KIP-890), and sequence numbers restart at 0
    (:meth:`adopt`). This class then raises no epochs itself.
    """

    _identity: Identity | None = None
    _sequence: int = 0
    _is_given: bool = False
    _is_spent: bool = False
    is_in_doubt: bool = False
    """Whether a batch was sent with the next numbers and its result is unknown."""

    def __repr__(self) -> str:
        return f"<Numbering {self._identity} sequence={self._sequence}{' spent' if self._is_spent else ''}>"

    def next(self, fresh: Identity | None) -> tuple[Identity, int] | None:
        """Return the numbers of the next batch. They stay the same until another method is called.

        ``fresh``: an identity for a partition that needs one. Returns None if a different producer id is needed.
        """
        identity = self._identity
        if identity is None or self._is_spent:
            if self._is_given or fresh is None or (identity is not None and fresh.producer_id == identity.producer_id):
                return None
            self._identity = identity = fresh
            self._is_spent = self.is_in_doubt = False
            self._sequence = 0
        return identity, self._sequence

    def adopt(self, identity: Identity) -> None:
        """Use this transaction's identity from now on. The current identity changes nothing."""
        if identity != self._identity:
            self._identity, self._is_given = identity, True
            self._is_spent = self.is_in_doubt = False
            self._sequence = 0

    def acknowledged(self, count: int) -> None:
        """The batch with the current numbers was written, with ``count`` records."""
        self._sequence = (self._sequence + count) % _SEQUENCES
        self.is_in_doubt = False
        if not self._is_given and self._identity is not None and self._identity.epoch >= _WORN_EPOCH:
            self._is_spent = True

    def abandon(self) -> None:
        """Never use the current numbers again: a batch that was sent with them may be written, now or later."""
        self.is_in_doubt = False
        if self._identity is None:
            return
        producer_id, epoch = self._identity
        if self._is_given or epoch >= _LAST_EPOCH:
            self._is_spent = True
        else:
            self._identity = Identity(producer_id, epoch + 1)
            self._sequence = 0

    def reject(self) -> None:
        """The broker no longer accepts this producer id: another one is needed."""
        self._is_spent = True
