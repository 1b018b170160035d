"""Exactly once with Kafka's transactions: each transaction commits positions and outputs together.

``machine.py`` decides the next step of a transaction, and ``codes.py`` maps the brokers' answers.
``pending_outputs.py`` holds outputs until they are sent. ``builder.py`` chooses what goes into a transaction, within
the limit of ``size.py``, and ``batch.py`` writes offset maps that match the outputs. ``transaction_committer.py``
drives all of them. ``producer.py`` defines what a client must provide.
"""

from __future__ import annotations

from aioparallel.persistence.transactions.producer import NO_ANSWER, Epoch, Epochs, StableOffsets, TransactionalProducer
from aioparallel.persistence.transactions.transactional_commits import TransactionalCommits, is_transactional

__all__ = [
    "NO_ANSWER",
    "Epoch",
    "Epochs",
    "StableOffsets",
    "TransactionalCommits",
    "TransactionalProducer",
    "is_transactional",
]
