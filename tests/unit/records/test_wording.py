"""Words for messages."""

from __future__ import annotations

import pytest

from aioparallel.records.record import TopicPartition
from aioparallel.records.wording import partitions_text


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        ([("orders", 3)], "orders 3"),
        ([("refunds", 0), *(("orders", number) for number in (7, 2, 0, 1))], "orders 0-2, 7; refunds 0"),
        ([("a", number) for number in range(1_000)], "a 0-999"),
        ([("a", 2 * number) for number in range(10)], "a 0, 2, 4, 6, 8, 10, 12, 14, 16, 18"),
        ([("a", 2 * number) for number in range(500)], "a 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 490 more"),
        ([(one, 0) for one in "abcdefghijkl"], "a 0; b 0; c 0; d 0; e 0; f 0; g 0; h 0; i 0; j 0 and 2 more"),
        (
            [*(("a", 2 * number) for number in range(9)), ("b", 0), ("b", 1), ("c", 0)],
            "a 0, 2, 4, 6, 8, 10, 12, 14, 16; b 0-1 and 1 more",
        ),
    ],
)  # fmt: skip
def test_partitions_are_named_briefly(partitions: list[tuple[str, int]], text: str) -> None:
    """Neighbours as ranges, and not hundreds of them."""
    assert partitions_text(TopicPartition(*one) for one in partitions) == text
