"""A lane: the FIFO of records that must run one after the other.

There is no object for it. Its records are linked through ``Record._next``, from the one that runs next, runs now or is
parked (the *head*, which stays in place until it has ended) to the one that came last, which ``Session.lanes`` holds by
the lane's key. Most lanes of a topic with many keys have a single record: an object for each would cost as much as the
record's decoding, and an empty deque takes 760 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from aioparallel.handling import OrderBy, Ordering
from aioparallel.records import Record

__all__ = ["lane_keys", "length_from"]


def lane_keys(records: Sequence[Record[Any, Any]], ordering: Ordering, order_by: OrderBy | None) -> Iterable[Hashable]:
    """The lane of each record within its partition; None: no order."""
    if order_by is not None:
        return [order_by(record) for record in records]
    if ordering is Ordering.KEY:
        return [record.key for record in records]
    # One lane for the partition, or none.
    return itertools.repeat(True if ordering is Ordering.PARTITION else None)


def length_from(head: Record[Any, Any]) -> int:
    """Records of the lane whose head this is."""
    length, record = 1, head
    while (following := record._next) is not None:
        record = following
        length += 1
    return length
