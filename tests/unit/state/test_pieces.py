"""What a full snapshot is written as."""

from __future__ import annotations

import random

from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.state.pieces import Head, decode_head, encode_head


def test_a_full_snapshot_keeps_its_whole_offset_map() -> None:
    """Longer than what a commit could hold."""
    chance = random.Random(1)
    incompletes = [n for n in range(200_000) if chance.random() < 0.3]
    text = encode_offset_map(0, 200_000, incompletes, limit=None)
    assert len(text) > 4_096
    head = Head(decode_offset_map(0, text), 7)
    assert decode_head(encode_head(head)) == head
