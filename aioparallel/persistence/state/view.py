"""The state of one assignment: the values that handlers see, what is complete, and the full snapshots. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioparallel.config.state import State
from aioparallel.group.client import Committed
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.persistence.state.increments import Increment, Named, Parts
from aioparallel.persistence.state.table import Frozen, Table
from aioparallel.persistence.state.unapplied import NONE, Unapplied, UnappliedOffsets
from aioparallel.records.errors import ConsumerStateError, OffsetMapError, RecordWithoutKey, StateFailed
from aioparallel.records.record import Record
from aioparallel.records.user_errors import RAISED, refuse_coroutine

if TYPE_CHECKING:
    from aioparallel.group.assignment import Assignment
from aioparallel.config.state import KeyedPartition

__all__ = ["Restored", "StateView", "Taken", "position_of"]

_SLOTS: Final = 3
"""Slots for full snapshots: two for those that increments name, one for the next."""
_WATCHED: Final = 1_000
"""Records of an assignment for which it is checked that apply() does not change its argument."""
_UNCHANGEABLE: Final = (int, float, str, bytes, bool, frozenset)
_MANY: Final = 100_000
"""Records not in the state that make a full snapshot due, for any number of keys. A snapshot drops the offsets before
it."""
_NAMED: Final = 2
"""Full snapshots that an increment names. The older one is used if the newest is unusable."""


class Restored(NamedTuple):
    """The state at a committed position."""

    table: Table[Any]
    origin: int | None
    """The offset at which the state began, empty; None: the first offset of the assignment."""
    unapplied: Collection[int]
    """Complete offsets that are not in the state."""
    snapshots: Sequence[tuple[Named, OffsetMap | None]]
    """The usable full snapshots with their positions, the newest first. None: the snapshot was not read."""
    replayed: int
    """Records after the newest snapshot."""
    taken_to: int | None = None
    """The offset of the newest snapshot, or the origin without one; None: the first offset of the assignment."""
    incarnation: int = 0
    """The incarnation of the increments."""
    at: int | None = None
    """When the newest snapshot was taken, or the state began, in milliseconds since the epoch; None: now."""
    next_incarnation: int | None = None
    """The incarnation that begins with the next acknowledged commit; None: the same."""


class Taken(NamedTuple):
    """A full snapshot to write: a copy of the state and its position."""

    slot: int
    position: OffsetMap
    frozen: Frozen[Any]
    assignment: Assignment
    at: float
    """Seconds since the epoch."""
    since: int
    """Records since the previous snapshot."""
    unapplied_since: int
    """How many of these are not in the state."""


_Begun = tuple[bytes, Any, Any, Hashable]
"""An attempt of one record: its key, the value before and after it, its lane. One is made for each record, and a named
tuple takes six times as long."""


class StateView(KeyedPartition):
    """The states of one partition.

    The value after a record is computed before its handler runs, so a record that ``apply`` refuses has no effects. It
    becomes the value of the key when the record has succeeded. ``clock()``: monotonic seconds since the epoch.
    ``keeps_lanes``: whether :meth:`lanes` is used.
    """

    def __init__(
        self, policy: State[Any], assignment: Assignment, clock: Callable[[], float], *, keeps_lanes: bool = False
    ) -> None:
        self.assignment = assignment
        self.save_failure = ""
        """Why the last increment is not written; empty: it is."""
        self.snapshot_failure = ""
        """The same for the last full snapshot."""
        self.retry_at = 0.0
        """No full snapshot is tried before this time of the event loop."""
        self._policy = policy
        self._clock = clock
        self._table: Table[Any] | None = None
        self._begun: dict[int, _Begun] = {}
        self._watches, self._trusted = _WATCHED, False
        # Lanes of offsets that are complete and not committed.
        self._lanes: dict[int, Hashable] | None = {} if keeps_lanes else None
        self._newest: dict[bytes, int] = {}  # the last begun offset of each key: a batch may hold several
        self._origin: int | None = None
        self._unapplied = UnappliedOffsets()
        self._unapplied_since = 0  # those since the last snapshot
        self._snapshots: list[tuple[Named, OffsetMap | None]] = []  # increments name these, the newest first
        self._written: tuple[Named, OffsetMap] | None = None  # not named yet: contains uncommitted records
        self._sent: tuple[object, ...] = ()  # incarnation and snapshot ids of the last increment
        self._saved: tuple[object, ...] = ()  # the same of the last committed one
        self._since = 0  # records since the last snapshot
        self._taken_to: int | None = None  # offset of the last snapshot; None: start of the assignment
        self._incarnation = 0
        self._next_incarnation: int | None = None
        self._taken_at = clock()
        self._taken: Taken | None = None
        self._parts_sent = self._parts_written = 0

    # -- restored ---------------------------------------------------------------------------------------

    def restore(self, found: Restored) -> None:
        """Set the state at the start of the assignment."""
        self._table = found.table
        self._origin = found.origin
        self._incarnation, self._next_incarnation = found.incarnation, found.next_incarnation
        self._taken_to = found.taken_to
        self._unapplied = UnappliedOffsets(found.unapplied)
        self._snapshots = [*found.snapshots]
        self._since = found.replayed
        self._sent = self._saved = self._named
        if found.at is not None:
            # The time is from another process, whose clock may be fast: a future time counts as now.
            self._taken_at = min(found.at / 1000, self._clock())

    @property
    def is_restored(self) -> bool:
        """Whether the state is restored."""
        return self._table is not None

    @property
    def table(self) -> Table[Any]:
        """The values. The state must be restored."""
        assert self._table is not None
        return self._table

    @property
    def unapplied(self) -> int:
        """The number of complete records not in the state, since the older named snapshot."""
        return len(self._unapplied)

    # -- attempts ---------------------------------------------------------------------------------------

    def begin(self, record: Record[Any, Any]) -> None:
        """Compute the value after this record. Raises RecordWithoutKey, StateFailed."""
        key = record.raw_key
        if key is None:
            raise RecordWithoutKey(record.place)
        policy, offset = self._policy, record.offset
        # A begun record of the same key at this offset or a later one is of an earlier attempt.
        newest = self._newest.get(key)
        if newest is None or newest >= offset:
            before = self.table.get(key, policy.initial)
        elif (before := self._begun[newest][2]) is None:
            before = policy.initial
        try:
            after = policy.apply(before, record) if self._trusted else self._watched(before, record)
            refuse_coroutine(after)
        except RAISED as error:
            raise StateFailed(record.place, error) from error
        self._begun[offset] = key, before, after, record._lane
        self._newest[key] = offset

    def _watched(self, before: Any, record: Record[Any, Any]) -> Any:
        """Apply the record and check that the value before it is unchanged.

        A changed value would be shared by keys, and a failed record would have an effect. A check takes two dumps, so
        only the first records are checked.
        """
        self._watches -= 1
        self._trusted = not self._watches
        if before is None or isinstance(before, _UNCHANGEABLE):
            return self._policy.apply(before, record)
        dumped = self._policy.dump(before)
        refuse_coroutine(dumped)
        after = self._policy.apply(before, record)
        if self._policy.dump(before) != dumped:
            raise TypeError(
                "it changed the value that it was given: it must make a new one, [*value, 1] and not value.append(1)"
            )
        return after

    def state_of(self, record: Record[Any, Any]) -> Any:
        """Returns the value before this record. Raises ConsumerStateError."""
        begun = self._begun.get(record.offset)
        if begun is None:
            raise ConsumerStateError(f"{record!r} is not being handled: only its handler can read its state")
        return begun[1]

    # -- outcomes ---------------------------------------------------------------------------------------

    def gave_up(self, offset: int) -> None:
        """Leave the record out of the state."""
        begun = self._begun.pop(offset, None)
        if begun is not None and self._newest.get(begun[0]) == offset:
            del self._newest[begun[0]]

    def completed(self, offset: int) -> None:
        """Set the value of its key."""
        self.completed_all((offset,))

    def completed_all(self, offsets: Sequence[int]) -> None:
        """Set the values of their keys."""
        newest, table, lanes = self._newest, self.table, self._lanes
        self._since += len(offsets)
        for offset in offsets:
            begun = self._begun.pop(offset, None)
            if begun is None:
                self._unapplied.add(offset)
                self._unapplied_since += 1
                continue
            key = begun[0]
            if newest.get(key) == offset:
                del newest[key]
            if lanes is not None:
                lanes[offset] = begun[3]
            table.set(key, begun[2])

    def completed_unread(self, offsets: Sequence[int]) -> None:
        """Note that the records are not in the state."""
        self.completed_all(offsets)

    # -- increments -------------------------------------------------------------------------------------

    def increment(self, committed: Committed, largest: int) -> tuple[Increment, Sequence[Unapplied]]:
        """Returns the increment for the position that is committed next, and the texts of its parts.

        A text has at most ``largest`` bytes. There are no parts if one text holds all offsets.
        """
        self._sent = self._named
        origin = self.assignment.start if self._origin is None else self._origin
        texts = self._unapplied.texts(largest)  # they may be many
        is_one = len(texts) <= 1
        parts = None if is_one else Parts(secrets.token_hex(8), len(texts))
        unapplied = texts[0] if is_one and texts else NONE
        named = [named for named, _ in self._snapshots]
        at, generation = round(self._taken_at * 1000), self.assignment.generation.id
        increment = Increment(committed, generation, origin, at, unapplied, named, self._incarnation, parts=parts)
        return increment, () if is_one else texts

    def parts_written(self, sent: int) -> int:
        """Returns how many parts earlier increments may have in the log; the caller deletes the surplus.

        ``sent``: the number of parts of this increment.
        """
        self._parts_sent, before = sent, self._parts_written
        self._parts_written = max(sent, before)
        return before

    def acknowledged(self) -> None:
        """The last increment is committed."""
        self._saved, self._parts_written = self._sent, self._parts_sent
        if self._next_incarnation is not None:  # a former owner's commits are refused, so it begins no incarnation
            self._incarnation, self._next_incarnation = self._next_incarnation, None
        if self._lanes and self.assignment.acknowledged is not None:
            is_committed = position_of(self.assignment.acknowledged).looker()
            self._lanes = {offset: lane for offset, lane in self._lanes.items() if not is_committed(offset)}
        self._name()

    def lanes(self) -> Mapping[int, Hashable]:
        """Returns the lanes of completed offsets that are not committed: a state needs the order of its key."""
        return dict(self._lanes or {})

    @property
    def has_news(self) -> bool:
        """Whether the last committed increment does not name the newest snapshot, or a new incarnation has none."""
        return self._next_incarnation is not None or self._saved != self._named

    @property
    def _named(self) -> tuple[object, ...]:
        return (self._incarnation, *[named.id for named, _ in self._snapshots])

    def _name(self) -> None:
        """Name the written snapshot once all its records are committed.

        A restore at the committed position must not find later records in it.
        """
        committed = self.assignment.acknowledged
        if self._written is None or committed is None or not position_of(committed).covers(self._written[1]):
            return
        self._snapshots = [self._written, *self._snapshots][:_NAMED]
        self._written = None
        oldest = self._snapshots[-1][1] if len(self._snapshots) == _NAMED else None
        if oldest is not None:
            is_in_oldest = oldest.looker()
            self._unapplied.keep(lambda offset: not is_in_oldest(offset))

    # -- full snapshots ---------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a full snapshot should be taken now, and a slot is free."""
        if self._table is None or self._taken or self._written or self.has_news or not self.assignment.may_commit():
            return False
        if self._since >= max(self._policy.snapshot_after, self._table.count) or self._unapplied_since >= _MANY:
            return True
        # Offsets without records count too (aborted records, markers): once deleted, they cannot be told from lost
        # ones.
        before = self.assignment.start if self._taken_to is None else self._taken_to
        has_moved = bool(self._since) or self.assignment.ledger.next_commit > before
        return has_moved and self._clock() - self._taken_at >= self._policy.snapshot_interval

    def _free_slot(self) -> int:
        """Returns a slot that no named snapshot uses.

        is_due() has made sure that the committed increment names the same snapshots.
        """
        taken = {named.slot for named, _ in self._snapshots}
        return next(slot for slot in range(_SLOTS) if slot not in taken)

    def take(self) -> Taken:
        """Copy the state and its position in one step. Call :meth:`written` or :meth:`not_written` next."""
        self._taken = Taken(
            self._free_slot(),
            self.assignment.ledger.snapshot(),
            self.table.freeze(),
            self.assignment,
            self._clock(),
            self._since,
            self._unapplied_since,
        )
        self._since = self._unapplied_since = 0
        return self._taken

    def written(self, named: Named) -> None:
        """The snapshot is stored in the topic."""
        assert self._taken is not None
        self._taken.frozen.release()
        self._written, self._taken_at = (named, self._taken.position), self._taken.at
        self._taken_to, self._taken = self._taken.position.base_offset, None
        self._name()

    def not_written(self) -> None:
        """The snapshot was not stored: another one is due as before."""
        assert self._taken is not None
        self._taken.frozen.release()
        self._since += self._taken.since
        self._unapplied_since += self._taken.unapplied_since
        self._taken = None


def position_of(committed: Committed) -> OffsetMap:
    """Returns the offset map of a commit, as assignments read it.

    If the metadata is no offset map, nothing above the offset is complete.
    """
    try:
        return decode_offset_map(*committed[:2])
    except OffsetMapError:
        return OffsetMap(committed.offset, committed.offset - 1)
