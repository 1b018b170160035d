"""A lane: the FIFO of records that must run one after the other.

There is no object for it. Its records are linked through ``Record._next``, from the one that runs next, runs now or is
parked (the *head*, which stays in place until it has ended) to the one that came last, which ``Session.lanes`` holds by
the lane's key. Most lanes of a topic with many keys have a single record: an object for each would cost as much as the
record's decoding, and an empty deque takes 760 bytes.

A *stale lane* outlives its source: one of its records still runs, or its output is being produced, when the source is
dropped. Its key stays closed for newer sources of that name until the record ends. This keeps I3 when a partition
comes back to the process that had it. One step may drop five hundred sources, each with hundreds of started records.
So dropping does no work for each record: the closed lanes of a name are collected when a newer source of that name
asks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from aioparallel.engine.sources import Source
from aioparallel.errors import WorkCancelled
from aioparallel.handling import OrderBy, Ordering
from aioparallel.records import Record
from aioparallel.user_errors import RAISED

__all__ = ["StaleLanes", "lane_keys", "length_from"]

AnyRecord = Record[Any, Any]


def lane_keys(records: Sequence[Record[Any, Any]], ordering: Ordering, order_by: OrderBy | None) -> Iterable[Hashable]:
    """The lane of each record within its partition; None: no order."""
    if order_by is not None:
        return _ordered(records, order_by)
    if ordering is Ordering.KEY:
        return [record.key for record in records]
    # One lane for the partition, or none.
    return itertools.repeat(True if ordering is Ordering.PARTITION else None)


def _ordered(records: Sequence[Record[Any, Any]], order_by: OrderBy) -> list[Hashable]:
    """Raises what ``order_by`` raises, with the record's place; never as if somebody had cancelled the reading."""
    lanes: list[Hashable] = []
    try:
        for record in records:
            hash(lane := order_by(record) if record._history is None else _lane_key(record, order_by))
            lanes.append(lane)
    except RAISED as error:
        place = records[len(lanes)].place
        failure = error if isinstance(error, Exception) else WorkCancelled(f"order_by for {place}")
        with contextlib.suppress(Exception):  # some take no notes
            failure.add_note(f"from order_by, for {place}: it gives any hashable value, or None for no order")
        if failure is error:
            raise
        raise failure from error
    return lanes


def _lane_key(record: Record[Any, Any], order_by: OrderBy) -> Hashable:
    """None for one that could not be decoded: the function may count on what is missing in it."""
    history = record._history
    return None if history is not None and history.undecodable is not None else order_by(record)


def length_from(head: Record[Any, Any]) -> int:
    """Records of the lane whose head this is."""
    length, record = 1, head
    while (following := record._next) is not None:
        record = following
        length += 1
    return length


class _Name:
    """What sources of one name have left behind."""

    __slots__ = ("closed", "left", "unread")

    def __init__(self) -> None:
        self.left: dict[Source, None] = {}  # dropped, with something begun
        self.unread: list[Source] = []  # of these, whose lanes are not in ``closed`` yet
        self.closed: dict[Hashable, AnyRecord | None] = {}  # by lane, the head of the newer lane that waits for it

    def read(self) -> None:
        for source in self.unread:
            for record in (*source.in_flight, *source.producing):
                if record._lane is not None:  # without a lane there is no order to keep
                    self.closed[record._lane] = None
        self.unread.clear()


class StaleLanes:
    """Keeps a lane to one running record at a time across all sources of one name."""

    def __init__(self) -> None:
        self._names: dict[Hashable, _Name] = {}

    @property
    def left(self) -> bool:
        """Whether there are any."""
        return bool(self._names)

    @property
    def waiting(self) -> Iterator[AnyRecord]:
        """The heads of lanes that wait for a stale one."""
        for name in self._names.values():
            for head in name.closed.values():
                if head is not None and not head._source.stopped:
                    yield head

    def adopt(self, source: Source) -> None:
        """Take a dropped source that has started records."""
        name = self._names.setdefault(source.name, _Name())
        name.left[source] = None
        name.unread.append(source)

    def close(self, head: AnyRecord) -> bool:
        """Return whether this new lane must wait for a stale one. If several wait, the newest is kept."""
        name = self._names.get(head._source.name)
        if name is None:
            return False
        if name.unread:
            name.read()
        if head._lane not in name.closed:
            return False
        name.closed[head._lane] = head
        return True

    def end(self, record: AnyRecord) -> AnyRecord | None:
        """A started record of a dropped source has ended. Return the head of the lane that waited for it and may start
        now."""
        source = record._source
        name = self._names[source.name]
        head = name.closed.pop(record._lane, None)
        if not source.begun:
            del name.left[source]
            if source in name.unread:
                name.unread.remove(source)
            if not name.left:
                del self._names[source.name]
        return None if head is None or head._source.stopped else head
