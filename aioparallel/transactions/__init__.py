"""Exactly once, with Kafka's transactions: positions and outputs are committed together.

``machine.py`` is the life of transactions as plain decisions, ``codes.py`` what each answer means. ``waiting.py`` holds
what is to leave, ``cut.py`` writes what of it goes together, ``cutting.py`` decides of which sessions and how much, by
``pace.py``. ``committer.py`` drives all of them. Clients bring what ``producer.py`` says.
"""

from __future__ import annotations

from aioparallel.transactions.keeping import TransactionKeeping, keeping_of
from aioparallel.transactions.producer import NO_ANSWER, Epoch, Epochs, StableOffsets, TransactionalProducer

__all__ = ["NO_ANSWER", "Epoch", "Epochs", "StableOffsets", "TransactionKeeping", "TransactionalProducer", "keeping_of"]
