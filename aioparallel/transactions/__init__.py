"""Exactly once with Kafka's transactions: each transaction commits positions and outputs together.

``machine.py`` decides the next step of a transaction, and ``codes.py`` maps the brokers' answers. ``waiting.py`` holds
outputs until they are sent. ``builder.py`` chooses what goes into a transaction, within the limit of ``size.py``, and
``batch.py`` writes offset maps that match the outputs. ``committer.py`` drives all of them. ``producer.py`` defines
what a client must provide.
"""

from __future__ import annotations

from aioparallel.transactions.keeping import TransactionKeeping, keeping_of
from aioparallel.transactions.producer import NO_ANSWER, Epoch, Epochs, StableOffsets, TransactionalProducer

__all__ = ["NO_ANSWER", "Epoch", "Epochs", "StableOffsets", "TransactionKeeping", "TransactionalProducer", "keeping_of"]
