"""A lane: the FIFO of records that must run one after the other.

A lane has no object of its own. Its records are linked through ``Record._next``, from the *head* to the newest record.
The head runs next, runs now or is parked; it stays in place until it has ended. ``Source.lanes`` holds the newest
record by the lane's key. Most lanes of a topic with many keys have a single record. An object for each would cost as
much as decoding the record, and an empty deque takes 760 bytes.

A *stale lane* outlives its source: the source is dropped while one of its records runs, or while its output is being
produced. The key stays closed for newer sources of the same name until that record ends. This keeps the order of the
key (I3) when a partition comes back to the process that had it. One step may drop five hundred sources, each with
hundreds of started records, so dropping does no work for each record. The closed lanes of a name are collected when a
newer source of that name needs them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

from aioparallel.config.handling import OrderBy, Ordering
from aioparallel.engine.sources import Source
from aioparallel.records.errors import WorkCancelled
from aioparallel.records.record import Record
from aioparallel.records.user_errors import RAISED, refuse_coroutine
from aioparallel.records.wording import kind_of

__all__ = ["USUAL_KEYS", "StaleLanes", "check_key", "lane_keys", "length_from"]

AnyRecord = Record[Any, Any]

USUAL_KEYS: Final = frozenset((bytes, str, int, type(None)))
"""Types of lane keys that need no :func:`check_key`."""


def check_key(key: object) -> None:
    """Raises TypeError for a key that cannot be one: it is not hashable, or an awaitable, which equals no other."""
    if isinstance(key, Awaitable):
        refuse_coroutine(key)
        raise TypeError(f"it returned {kind_of(key)}, which nothing awaits: it must return the key itself")
    hash(key)


def lane_keys(records: Sequence[Record[Any, Any]], ordering: Ordering, order_by: OrderBy | None) -> Iterable[Hashable]:
    """Return the lane of each record within its partition. None: no order."""
    if order_by is not None:
        return _ordered(records, order_by)
    if ordering is Ordering.KEY:
        return [record.key for record in records]
    # One lane for the whole partition, or no lane.
    return itertools.repeat(True if ordering is Ordering.PARTITION else None)


def _ordered(records: Sequence[Record[Any, Any]], order_by: OrderBy) -> list[Hashable]:
    """Raises what ``order_by`` raises, with a note that names the record. A CancelledError becomes WorkCancelled:
    nobody has cancelled the fetcher."""
    lanes: list[Hashable] = []
    try:
        for record in records:
            lane = order_by(record) if record._history is None else _lane_key(record, order_by)
            if type(lane) not in USUAL_KEYS:
                check_key(lane)
            lanes.append(lane)
    except RAISED as error:
        place = records[len(lanes)].place
        failure = error if isinstance(error, Exception) else WorkCancelled(f"order_by for {place}")
        with contextlib.suppress(Exception):  # some exceptions accept no notes
            failure.add_note(f"from order_by, for {place}: it must return a hashable value, or None for no order")
        if failure is error:
            raise
        raise failure from error
    return lanes


def _lane_key(record: Record[Any, Any], order_by: OrderBy) -> Hashable:
    """None for an undecodable record: the user's function may rely on parts that it lacks."""
    history = record._history
    return None if history is not None and history.undecodable is not None else order_by(record)


def length_from(head: Record[Any, Any]) -> int:
    """Return how many records the lane with this head has."""
    length, record = 1, head
    while (following := record._next) is not None:
        record = following
        length += 1
    return length


class _Name:
    """The dropped sources of one name that still have started records."""

    __slots__ = ("closed", "left", "unread")

    def __init__(self) -> None:
        self.left: dict[Source, None] = {}
        self.unread: list[Source] = []  # those whose lanes are not in ``closed`` yet
        # By stale lane, the head of the newer lane that waits for it.
        self.closed: dict[Hashable, AnyRecord | None] = {}

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
        """Whether there are any stale lanes."""
        return bool(self._names)

    @property
    def waiting(self) -> Iterator[AnyRecord]:
        """The heads of lanes that wait for a stale one."""
        for name in self._names.values():
            for head in name.closed.values():
                if head is not None and not head._source.stopped:
                    yield head

    def adopt(self, source: Source) -> None:
        """Add a dropped source that has started records."""
        name = self._names.setdefault(source.name, _Name())
        name.left[source] = None
        name.unread.append(source)

    def close(self, head: AnyRecord) -> bool:
        """Return whether this new lane must wait for a stale one. Of several that wait, only the newest is remembered:
        the others are of dropped sources."""
        name = self._names.get(head._source.name)
        if name is None:
            return False
        if name.unread:
            name.read()
        if head._lane not in name.closed:
            return False
        name.closed[head._lane] = head
        return True

    def replace(self, head: AnyRecord, following: AnyRecord | None) -> bool:
        """Let the next record of its lane wait instead of this head. False: the head does not wait here."""
        name = self._names.get(head._source.name)
        if name is None or name.closed.get(head._lane) is not head:
            return False
        name.closed[head._lane] = following
        return True

    def end(self, record: AnyRecord) -> AnyRecord | None:
        """End a started record of a dropped source. Return the head of the lane that waited and may start now."""
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
