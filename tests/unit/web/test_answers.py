"""The JSON of the routes."""

from __future__ import annotations

import hashlib

from aioparallel import Paused, TopicPartition
from aioparallel.web.answers import _plain


def test_paused_keys_are_hashed() -> None:
    """As the key of the longest lane: they may be personal data."""
    found = _plain(Paused(topics=("t",), partitions=(TopicPartition("u", 1),), keys={"v": (b"anna",)}))
    assert found == {
        "everything": False,
        "topics": ["t"],
        "partitions": [{"topic": "u", "partition": 1}],
        "keys": {"v": [hashlib.blake2b(b"anna").hexdigest()[:16]]},
    }
