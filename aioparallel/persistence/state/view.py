"""One session's state: what handlers see, what is complete, and which full snapshots there are. Plain, no I/O."""

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
from aioparallel.records.user_errors import RAISED

if TYPE_CHECKING:
    from aioparallel.group.sessions import Session
from aioparallel.config.state import KeyedPartition

__all__ = ["Restored", "StateView", "Taken", "position_of"]

_SLOTS: Final = 3
"""Places for full snapshots: of two that are named, and of the one that is written."""
_WATCHED: Final = 1_000
"""Records of a session for which apply() is seen to change nothing that it was given."""
_UNCHANGEABLE: Final = (int, float, str, bytes, bool, frozenset)
_MANY: Final = 100_000
"""Records that are not in the state from which on a full snapshot is due, however many keys there are: it lets go of
those before it."""
_NAMED: Final = 2
"""Full snapshots that an increment names: where the newest cannot be used, the one before it."""


class Restored(NamedTuple):
    """The state at a committed position, and what is known with it."""

    table: Table[Any]
    origin: int | None
    """Where the state was begun, empty; None: where the session begins."""
    unapplied: Collection[int]
    snapshots: Sequence[tuple[Named, OffsetMap | None]]
    """The usable ones, the newest first, and the position of each; None: nobody has looked."""
    replayed: int
    """Records since the newest."""
    taken_to: int | None = None
    """The offset that is of, or that it was begun at without one; None: where the session begins."""
    life: int = 0
    """Where its increments ended when it was begun."""
    at: int | None = None
    """When that was taken, or what there is was begun without one, milliseconds since the epoch; None: now."""
    next_life: int | None = None
    """Of the increments from the first commit on that counts; None: the same."""


class Taken(NamedTuple):
    """A full snapshot that is to be written: the state, frozen, and the position that it is of."""

    slot: int
    position: OffsetMap
    frozen: Frozen[Any]
    session: Session
    at: float
    """Seconds since the epoch."""
    since: int
    """Records since the one before."""
    unapplied_since: int
    """And how many of these are not in the state."""


_Begun = tuple[bytes, Any, Any, Hashable]
"""An attempt of one record: its key, the value before it and after it, its lane. A plain tuple: of each record one is
made, and a named one takes six times as long."""


class StateView(KeyedPartition):
    """The states of one partition.

    The value after a record is made before its handler runs: what ``apply`` refuses has no effects. It becomes the
    key's when the record has succeeded. ``clock()``: seconds since the epoch, which never go back. ``keeps_lanes``:
    whether :meth:`lanes` is asked.
    """

    def __init__(
        self, policy: State[Any], session: Session, clock: Callable[[], float], *, keeps_lanes: bool = False
    ) -> None:
        self.session = session
        self._policy = policy
        self._clock = clock
        self._table: Table[Any] | None = None
        self._begun: dict[int, _Begun] = {}
        self._watches, self._trusted = _WATCHED, False
        # Of what is complete, and not committed; None: nobody asks.
        self._lanes: dict[int, Hashable] | None = {} if keeps_lanes else None
        self._newest: dict[bytes, int] = {}  # of those begun: a batch may hold several of a key
        self._origin: int | None = None
        self._unapplied = UnappliedOffsets()
        self._unapplied_since = 0  # and since the last one was taken
        self._snapshots: list[tuple[Named, OffsetMap | None]] = []  # that may be named, the newest first
        self._written: tuple[Named, OffsetMap] | None = None  # not yet, for it says what is not committed
        self._sent: tuple[object, ...] = ()  # life, and ids of those named, of the last increment
        self._saved: tuple[object, ...] = ()  # and of the last one that counts
        self._since = 0  # records since the last one was taken
        self._taken_to: int | None = None  # the offset that is of; None: where the session begins
        self._life = 0
        self._next_life: int | None = None
        self._taken_at = clock()
        self._taken: Taken | None = None
        self._parts_sent = self._parts_written = 0

    # -- restored ---------------------------------------------------------------------------------------

    def restore(self, found: Restored) -> None:
        """This is the state where the session begins."""
        self._table = found.table
        self._origin = found.origin
        self._life, self._next_life = found.life, found.next_life
        self._taken_to = found.taken_to
        self._unapplied = UnappliedOffsets(found.unapplied)
        self._snapshots = [*found.snapshots]
        self._since = found.replayed
        self._sent = self._saved = self._told
        if found.at is not None:
            # Another process wrote it by its own clock, which may be fast: what has not come yet counts as now.
            self._taken_at = min(found.at / 1000, self._clock())

    @property
    def is_restored(self) -> bool:
        """Whether it has a state."""
        return self._table is not None

    @property
    def table(self) -> Table[Any]:
        """The values. Restored by the time records come."""
        assert self._table is not None
        return self._table

    @property
    def unapplied(self) -> int:
        """How many complete records of it are not in the state, as far as that is still kept."""
        return len(self._unapplied)

    # -- attempts ---------------------------------------------------------------------------------------

    def begin(self, record: Record[Any, Any]) -> None:
        """An attempt begins. Raises RecordWithoutKey, StateFailed."""
        key = record.raw_key
        if key is None:
            raise RecordWithoutKey(record.place)
        policy, offset = self._policy, record.offset
        # What was begun before it and stands behind it, or is itself, is of an attempt that is over.
        newest = self._newest.get(key)
        if newest is None or newest >= offset:
            before = self.table.get(key, policy.initial)
        elif (before := self._begun[newest][2]) is None:
            before = policy.initial
        try:
            after = policy.apply(before, record) if self._trusted else self._watched(before, record)
        except RAISED as error:
            raise StateFailed(record.place, error) from error
        self._begun[offset] = key, before, after, record._lane
        self._newest[key] = offset

    def _watched(self, before: Any, record: Record[Any, Any]) -> Any:
        """Apply it, and see that it changes nothing: keys would share what is changed, and a record that fails would
        have its effect. Not for ever, for that costs two dumps."""
        self._watches -= 1
        self._trusted = not self._watches
        if before is None or isinstance(before, _UNCHANGEABLE):
            return self._policy.apply(before, record)
        dumped = self._policy.dump(before)
        after = self._policy.apply(before, record)
        if self._policy.dump(before) != dumped:
            raise TypeError(
                "it has changed the value that it was given: it must make a new one, [*value, 1] and no value.append(1)"
            )
        return after

    def state_of(self, record: Record[Any, Any]) -> Any:
        """What the handler of this record sees. Raises ConsumerStateError."""
        begun = self._begun.get(record.offset)
        if begun is None:
            raise ConsumerStateError(f"{record!r} is not being handled: its state is there for its handler alone")
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

    # -- increments -------------------------------------------------------------------------------------

    def increment(self, committed: Committed, largest: int) -> tuple[Increment, Sequence[Unapplied]]:
        """What is to be saved with this position, which is committed next; and its parts, with texts of ``largest``
        bytes at most, where it takes some."""
        self._sent = self._told
        origin = self.session.start if self._origin is None else self._origin
        texts = self._unapplied.texts(largest)  # they may be many
        is_one = len(texts) <= 1
        parts = None if is_one else Parts(secrets.token_hex(8), len(texts))
        unapplied = texts[0] if is_one and texts else NONE
        named = [named for named, _ in self._snapshots]
        at, generation = round(self._taken_at * 1000), self.session.generation.id
        increment = Increment(committed, generation, origin, at, unapplied, named, self._life, parts=parts)
        return increment, () if is_one else texts

    def parts_written(self, sent: int) -> int:
        """How many parts of an increment may stand in the log: those too many are to be deleted. ``sent``: there are so
        many now."""
        self._parts_sent, before = sent, self._parts_written
        self._parts_written = max(sent, before)
        return before

    def acknowledged(self) -> None:
        """What was sent last is saved."""
        self._saved, self._parts_written = self._sent, self._parts_sent
        if self._next_life is not None:  # a former owner, whose commits are refused, begins none
            self._life, self._next_life = self._next_life, None
        if self._lanes and self.session.acknowledged is not None:
            is_committed = position_of(self.session.acknowledged).looker()
            self._lanes = {offset: lane for offset, lane in self._lanes.items() if not is_committed(offset)}
        self._name()

    def lanes(self) -> Mapping[int, Hashable]:
        """A state is made in the order of its key."""
        return dict(self._lanes or {})

    @property
    def has_news(self) -> bool:
        """Whether a full snapshot is named in no increment yet, or a life has none."""
        return self._next_life is not None or self._saved != self._told

    @property
    def _told(self) -> tuple[object, ...]:
        return (self._life, *[named.id for named, _ in self._snapshots])

    def _name(self) -> None:
        """Name what was written, as soon as what it says is committed: whoever begins at the committed position must
        not find what comes behind that."""
        committed = self.session.acknowledged
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
        """Whether a full snapshot should be taken, and there is a place for it."""
        if self._table is None or self._taken or self._written or self.has_news or not self.session.may_commit():
            return False
        if self._since >= max(self._policy.snapshot_after, self._table.count) or self._unapplied_since >= _MANY:
            return True
        # Also where what was passed holds no records (aborted ones, markers): nobody knows that once it is deleted.
        before = self.session.start if self._taken_to is None else self._taken_to
        has_moved = bool(self._since) or self.session.ledger.next_commit > before
        return has_moved and self._clock() - self._taken_at >= self._policy.snapshot_interval

    def _free_slot(self) -> int:
        """One in which nothing is that is named, here or in what is saved: these are the same before the next one is
        taken."""
        taken = {named.slot for named, _ in self._snapshots}
        return next(slot for slot in range(_SLOTS) if slot not in taken)

    def take(self) -> Taken:
        """Freeze the state, with the position that it is of: one step. :meth:`written` or
        :meth:`not_written` comes next."""
        self._taken = Taken(
            self._free_slot(),
            self.session.ledger.snapshot(),
            self.table.freeze(),
            self.session,
            self._clock(),
            self._since,
            self._unapplied_since,
        )
        self._since = self._unapplied_since = 0
        return self._taken

    def written(self, named: Named) -> None:
        """What was taken stands in the topic."""
        assert self._taken is not None
        self._taken.frozen.release()
        self._written, self._taken_at = (named, self._taken.position), self._taken.at
        self._taken_to, self._taken = self._taken.position.base_offset, None
        self._name()

    def not_written(self) -> None:
        """It does not: another one is as due as that was."""
        assert self._taken is not None
        self._taken.frozen.release()
        self._since += self._taken.since
        self._unapplied_since += self._taken.unapplied_since
        self._taken = None


def position_of(committed: Committed) -> OffsetMap:
    """As whoever opens a session reads it: where the text is no map, nothing above the offset is complete."""
    try:
        return decode_offset_map(*committed[:2])
    except OffsetMapError:
        return OffsetMap(committed.offset, committed.offset - 1)
