"""A lane: the FIFO of records that must run one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aioparallel.options import OrderBy, Ordering
from aioparallel.records import Headers, Record

if TYPE_CHECKING:
    from aioparallel.engine.session import Session

__all__ = ["Lane", "lane_keys", "size_of_headers"]


class Lane:
    """Records of one session with one lane key, linked through ``Record._next``.

    Linked rather than a deque: an empty deque takes 760 bytes, and there may be 100,000 lanes with one record
    each. The head stays in place while it is in flight or parked, which is what keeps the lane's order.

    A session's *loose* lane (``key`` None) stands for records without order: they carry it to name their
    session, and are never linked.
    """

    __slots__ = ("head", "key", "session", "successor", "tail")

    def __init__(self, session: Session, key: Hashable, head: Record | None = None) -> None:
        self.session = session
        self.key = key
        self.head = head
        self.tail = head
        # The lane of a newer session with the same key, closed until the record that still runs here ends.
        self.successor: Lane | None = None

    def __iter__(self) -> Iterator[Record]:
        record = self.head
        while record is not None:
            yield record
            record = record._next


def lane_keys(records: Sequence[Record[Any, Any]], ordering: Ordering, order_by: OrderBy | None) -> Iterable[Hashable]:
    """The lane of each record within its partition; None: no order."""
    if order_by is not None:
        return [order_by(record) for record in records]
    if ordering is Ordering.KEY:
        return [record.key for record in records]
    # One lane for the partition, or none.
    return itertools.repeat(True if ordering is Ordering.PARTITION else None)


def size_of_headers(headers: Headers) -> int:
    """Bytes of names and values."""
    return sum(len(name) + (0 if value is None else len(value)) for name, value in headers)
