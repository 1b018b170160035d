"""The numbers of one partition's batches: what a broker recognises a repeated batch by, and refuses a late one by."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Identity", "Numbering"]

_SEQUENCES: Final = 2**31
"""Sequence numbers go from 0 up to this, and begin again."""
_LAST_EPOCH: Final = 2**15 - 1
_WORN_EPOCH: Final = 30_000
"""From here on a producer id is given up at the next acknowledgement: then nothing of it is in doubt, so nothing is
left that only a higher epoch of the same id could fence."""


class Identity(NamedTuple):
    """Who the broker takes us for."""

    producer_id: int
    epoch: int


class Numbering:
    """Producer id, epoch and sequence number of one partition's next batch.

    What brokers do with them (KIP-98, KIP-360), for each producer id and partition: a batch is written if its number
    follows the last one; with the numbers of one that was written it is taken for that one and not written again;
    an epoch begins with number 0, and whatever comes with an older epoch after that is refused.

    So a number may be used for another batch only if the last one was certainly not written; and when nobody will
    ever know, the epoch goes up, and the old batch cannot be written any more once the first one of the new epoch is.
    The epoch is this partition's own: no broker has to be asked for it, and no other partition hears of it.

    In transactions the coordinator gives an epoch to each of them (KIP-890), and its numbers begin with 0 everywhere:
    :meth:`adopt`. Then none is ever changed here.
    """

    __slots__ = ("_identity", "_is_given", "_is_spent", "_sequence", "is_in_doubt")

    def __init__(self) -> None:
        self._is_given = False
        self.is_in_doubt = False
        """Whether the next numbers may be taken: a batch was sent with them, and no answer says what became of it."""
        self._identity: Identity | None = None
        self._is_spent = False
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<Numbering {self._identity} sequence={self._sequence}{' spent' if self._is_spent else ''}>"

    def next(self, fresh: Identity | None) -> tuple[Identity, int] | None:
        """The numbers of the next batch, the same until one of the other methods is called.

        ``fresh``: for a partition that needs a producer id; None is returned if it has to be another one than that.
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
        """What is sent from now on is of the transaction with this epoch; the same again changes nothing."""
        if identity != self._identity:
            self._identity, self._is_given = identity, True
            self._is_spent = self.is_in_doubt = False
            self._sequence = 0

    def acknowledged(self, count: int) -> None:
        """The batch with the last numbers stands in the log, ``count`` records."""
        self._sequence = (self._sequence + count) % _SEQUENCES
        self.is_in_doubt = False
        if not self._is_given and self._identity is not None and self._identity.epoch >= _WORN_EPOCH:
            self._is_spent = True

    def abandon(self) -> None:
        """What was sent with the last numbers may have been written, or may yet be: they are never used again."""
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
        """The broker accepts no number of this producer id: another id is needed."""
        self._is_spent = True
