"""What a full snapshot is written as."""

from __future__ import annotations

import random

import pytest

from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.persistence.state.pieces import Head, decode_head, encode_head


def test_a_full_snapshot_keeps_its_whole_offset_map() -> None:
    """Longer than what a commit could hold."""
    chance = random.Random(1)
    incompletes = [n for n in range(200_000) if chance.random() < 0.3]
    text = encode_offset_map(0, 200_000, incompletes, limit=None)
    assert len(text) > 4_096
    head = Head(decode_offset_map(0, text), 7)
    assert decode_head(encode_head(head)) == head


@pytest.mark.parametrize(
    "value", [b'{"v":1,"base":1e999,"map":"","keys":1}', b'{"v":1,"base":0,"map":"","keys":-1e999}']
)
def test_a_head_with_numbers_that_are_none(value: bytes) -> None:
    """Is damaged like any other."""
    with pytest.raises(ValueError, match="not as it is written"):
        decode_head(value)
