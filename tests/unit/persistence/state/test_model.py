"""A state against a model of it: any course of outcomes, commits, full snapshots, crashes, compactions, lost writes."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioparallel import Record, State
from aioparallel.config.options import Options
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.offsets import Ledger, decode_offset_map, encode_offset_map
from aioparallel.persistence.state import pieces
from aioparallel.persistence.state.increments import Named, Place, decode_increment, encode_increment, encode_place
from aioparallel.persistence.state.pieces import EntryWriter, Head, PieceKey, encode_head, encode_piece_key
from aioparallel.persistence.state.restoring import Restoring
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.topics import StateTopics, TopicNames
from aioparallel.persistence.state.unapplied import LARGEST_PIECE
from aioparallel.persistence.state.view import Restored, StateView
from aioparallel.records.errors import StateLogTruncated
from aioparallel.records.record import Outgoing, TopicPartition
from tests.support.examples import examples
from tests.support.memory.logs import Logs

P0 = TopicPartition("in", 0)
NAMES = TopicNames("inc", "full")
INCREMENTS, SNAPSHOTS = TopicPartition("inc", 0), TopicPartition("full", 0)
KEYS = 4


def append(values: tuple[int, ...], record: Record[Any, Any]) -> tuple[int, ...] | None:
    """All values of a key, in their order; a seventh one ends it."""
    return None if record.value == b"7" else (*values, record.offset)


POLICY: State[tuple[int, ...]] = State(
    initial=(),
    apply=append,
    dump=lambda values: ",".join(map(str, values)).encode(),
    load=lambda data: tuple(map(int, data.decode().split(","))) if data else (),
)
OPTIONS = Options(state=POLICY)


class Model:
    """One partition. ``handled``: offsets whose handler has succeeded, ``ended``: all with an outcome, of this life."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.committed: Committed | None = None
        self.handled: set[int] = set()  # of all lives, as far as they count by the committed position
        self.handled_now: set[int] = set()  # of this life
        self.handled_at_commit: set[int] = set()
        self.waiting: list[Record[Any, Any]] = []
        self.written = 0
        self.damaged: set[str] = set()  # ids of full snapshots

    def begin(self, together: bool, begins: int) -> None:
        """Positions and increments together, or increments first; the group begins somewhere."""
        self.together = together
        self.begins = begins
        for _ in range(begins):
            self.logs.append(Outgoing("in", b"0", b"k0"))
        self.start()

    def start(self) -> None:
        """A new owner: taken over, restored."""
        self.assignment = Assignment(P0, generation=Generation(1, "m"))
        self.view = StateView(POLICY, self.assignment, lambda: 1e9)
        self.assignment.extend((self.view,), self.fail)
        self.waiting = []
        self.handled_now = set()
        if self.committed is None:
            self.view.restore(Restored(Table(), None, (), (), 0))
            self.assignment.ledger = Ledger(self.begins)
        else:
            self.view.restore(asyncio.run(self.restored(self.committed)))
            offset, text, *_ = self.committed
            self.assignment.ledger = Ledger(offset, decode_offset_map(offset, text))
            self.assignment.acknowledged = self.committed
        self.assignment.opened = True

    async def restored(self, committed: Committed) -> Restored:
        """As a member would."""
        topics = StateTopics(NAMES, "g", self.logs.client)
        found = (await topics.last_increments({P0: committed}, 1, 1)).get(P0)
        assert not isinstance(found, ValueError)
        restored = await Restoring(P0, committed, topics, OPTIONS).run(found)
        # Nobody else writes here: what is named can be used.
        if found is not None:
            usable = [named for named in found.snapshots if named.id not in self.damaged]
            assert [named for named, _ in restored.snapshots] == usable
        return restored

    def expected(self) -> dict[bytes, tuple[int, ...]]:
        """The model: the handled records of each key, in their order."""
        found: dict[bytes, tuple[int, ...]] = {}
        for record in self.logs.of(P0):
            if record.offset in self.handled | self.handled_now:
                after = append(found.get(record.key or b"", ()), record)
                found.pop(record.key or b"", None)
                if after is not None:
                    found[record.key or b""] = after
        return found

    @staticmethod
    def fail(error: BaseException) -> None:
        """It never does."""
        raise error

    def state_is_the_models(self) -> None:
        """At every step."""
        assert dict(self.view.table.items()) == self.expected()
        assert self.view.table.count == len(self.expected())

    # -- records

    def deliver(self, keys: list[tuple[int, int]]) -> None:
        """More records are read."""
        for key, value in keys:
            self.logs.append(Outgoing("in", b"%d" % value, b"k%d" % key))
        position, log = self.assignment.ledger.position, self.logs.of(P0)
        records = [Record(*P0, one.offset, one.key, one.value) for one in log if one.offset >= position]
        for record in records:
            record._lane = record.key
        self.waiting += self.assignment.register(records, log[-1].offset + 1)

    def heads(self) -> list[Record[Any, Any]]:
        """Of each key the first one that waits."""
        return list({record.key: record for record in reversed(self.waiting)}.values())

    def succeed(self, place: int) -> None:
        """A handler sees the state before its record, and succeeds."""
        if self.waiting:
            heads = self.heads()
            self.end(heads[place % len(heads)])

    def end(self, record: Record[Any, Any]) -> None:
        """Its handler does."""
        self.view.begin(record)
        assert self.view.state_of(record) == self.expected().get(record.key or b"", ())
        self.assignment.complete(record.offset)
        self.handled_now.add(record.offset)
        self.waiting.remove(record)

    def succeed_in_a_batch(self, count: int, failing: int) -> None:
        """Several records in a row, of any keys; from one on they fail and come again."""
        batch = self.waiting[:count]
        expected = self.expected()
        for record in batch:
            self.view.begin(record)
            key = record.key or b""
            assert self.view.state_of(record) == expected.get(key, ())
            after = append(expected.get(key, ()), record)
            expected.pop(key, None)
            if after is not None:
                expected[key] = after
        done = batch[:failing]
        self.assignment.complete_all([record.offset for record in done])
        self.handled_now.update(record.offset for record in done)
        self.waiting = self.waiting[len(done) :]

    def put_away(self, place: int, tried: bool) -> None:
        """It is dead-lettered or skipped, tried before or not."""
        if not self.waiting:
            return
        heads = self.heads()
        record = heads[place % len(heads)]
        if tried:
            self.view.begin(record)
        self.assignment.gave_up(record.offset)
        self.assignment.complete(record.offset)
        self.waiting.remove(record)

    # -- commits

    def commit(self, is_late: bool, is_lost: bool) -> None:
        """The increment, and the position. ``is_lost``: without transactions it may be written alone. ``is_late``: more
        ends between taking the position and the increment."""
        said = self.assignment.ledger.snapshot()
        text = encode_offset_map(said.base_offset, said.highest_succeeded, said.incompletes)
        committed = Committed(said.base_offset, text)
        handled_then = {offset for offset in self.handled_now if said.is_complete(offset)}
        if is_late and self.waiting:
            record = self.heads()[0]
            self.assignment.gave_up(record.offset)
            self.assignment.complete(record.offset)
            self.waiting.remove(record)
        increment = self.view.increment(committed, LARGEST_PIECE)[0]
        if is_lost and self.together:
            return  # aborted: neither is there
        self.logs.append(Outgoing("inc", encode_increment(increment), encode_place(Place("g", P0, 0), 1)))
        if is_lost:
            return
        self.committed = self.assignment.acknowledged = committed
        self.handled_at_commit = self.handled | handled_then
        self.view.acknowledged()
        if self.view.has_news:  # a full snapshot may be named now
            self.commit(False, False)
        assert not self.view.has_news

    # -- full snapshots

    def snapshot(self, ends: int, then: str, piece: int, commits: int) -> None:
        """A full snapshot is taken, if there is a place for it. While it is written some records end. It is written, or
        only its head is; then come commits, or not."""
        self.view._taken_at -= POLICY.snapshot_interval  # its time has come
        if not self.view.is_due():
            return
        taken = self.view.take()
        for record in self.heads()[:ends]:
            self.end(record)
        self.written += 1
        name = b"%016d" % self.written
        with patch.object(pieces, "PIECE_BYTES", piece):
            values = [encode_head(Head(taken.position, taken.frozen.count))]
            entries = EntryWriter()
            for shard in taken.frozen.shards():
                entries.add([(key, POLICY.dump(value)) for key, value in shard])
                values += entries.full_pieces()
            values += entries.last_piece()
        offsets = []
        for number, value in enumerate(values if then == "written" else values[:-1]):
            key = encode_piece_key(PieceKey("g", P0, taken.slot, number))
            offsets.append(self.logs.append(Outgoing("full", value, key, (("id", name),))))
        if then == "crash":
            self.crash(0, damages=False, piece=0)
            return
        if then == "failed":
            self.view.not_written()
        else:
            last, count = offsets[-1] + 1, taken.frozen.count
            self.view.written(Named(taken.slot, name.decode(), 0, offsets[0], last, len(values), count))
        for _ in range(commits):
            self.commit(False, False)

    # -- what happens to members and topics

    def crash(self, commits: int, damages: bool, piece: int) -> None:
        """The owner is gone; another one begins where the group stands. Where two full snapshots are named, a piece of
        the newest may be gone as well."""
        for _ in range(commits):
            self.commit(False, False)
        if damages and self.committed is not None:
            self.damage(piece)
        self.handled = set(self.handled_at_commit)
        self.start()
        assert not self.view.has_news

    def damage(self, piece: int) -> None:
        """A zombie has written there, and the cleaner was there."""
        snapshots = decode_increment(self.logs.of(INCREMENTS)[-1].value, 0).snapshots
        if len(snapshots) == 2 and not self.damaged & {snapshots[1].id}:
            newest = snapshots[0]
            self.damaged.add(newest.id)
            lost = newest.first + piece % newest.pieces
            self.logs.remove(SNAPSHOTS, lost)

    def compact(self, place: TopicPartition) -> None:
        """The cleaner was there."""
        self.logs.compact(place)


PIECES = st.sampled_from([8, 40, 10_000])
READ = st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(0, 7)), min_size=1, max_size=5)
WRITTEN = st.sampled_from(["written", "written", "written", "failed", "crash"])
FEW, BOOLS = st.integers(0, 3), st.booleans()
STEPS = st.one_of(
    st.tuples(st.just(Model.deliver), READ),
    st.tuples(st.just(Model.succeed), FEW),
    st.tuples(st.just(Model.succeed), FEW),
    st.tuples(st.just(Model.succeed_in_a_batch), st.integers(2, 4), FEW),
    st.tuples(st.just(Model.put_away), FEW, BOOLS),
    st.tuples(st.just(Model.commit), BOOLS, BOOLS),
    st.tuples(st.just(Model.snapshot), FEW, WRITTEN, PIECES, FEW),
    st.tuples(st.just(Model.snapshot), FEW, WRITTEN, PIECES, FEW),
    st.tuples(st.just(Model.crash), st.integers(0, 2), BOOLS, st.integers(0, 9)),
    st.tuples(st.just(Model.compact), st.sampled_from([INCREMENTS, SNAPSHOTS])),
)


@settings(max_examples=examples(200, 400), deadline=None, suppress_health_check=list(HealthCheck))
@given(BOOLS, FEW, st.lists(STEPS, min_size=25, max_size=60))
def test_any_course(together: bool, begins: int, steps: list[Any]) -> None:
    """The state is the model's at every step."""
    model = Model()
    model.begin(together, begins)
    for step, *with_these in steps:
        step(model, *with_these)
        model.state_is_the_models()


def course(together: bool = False) -> Model:
    """With twelve records, of which the first has ended and is committed."""
    model = Model()
    model.begin(together, 0)
    model.deliver([(n % KEYS, 1) for n in range(12)])
    model.end(model.waiting[0])
    model.commit(False, False)
    return model


@pytest.mark.parametrize("commits", [0, 1])
def test_a_full_snapshot_beyond_the_committed_position_is_not_named(commits: int) -> None:
    """Whoever begins at that position would find records in it that run again."""
    model = course()
    model.end(model.waiting[0])
    model.snapshot(ends=0, then="written", piece=8, commits=commits)
    model.end(model.waiting[0])
    model.commit(False, True)  # the increment alone
    model.crash(0, damages=False, piece=0)
    model.state_is_the_models()
    assert bool(model.view.increment(Committed(0, ""), LARGEST_PIECE)[0].snapshots) == bool(commits)


def test_what_is_named_stays_while_the_next_ones_are_written() -> None:
    """Each has its place, also where the one before is not acknowledged; and the cleaner is always there."""
    model = course()
    for _ in range(8):
        model.end(model.waiting[0])
        model.snapshot(ends=1, then="written", piece=8, commits=0)
        model.compact(SNAPSHOTS)
        model.commit(False, True)
        model.crash(0, damages=False, piece=0)
        model.snapshot(ends=0, then="written", piece=8, commits=1)
        model.compact(SNAPSHOTS)
        model.deliver([(0, 1), (1, 2)])


def test_where_the_newest_is_damaged_the_one_before_does() -> None:
    """With all that was put away since that one."""
    model = course()
    for _ in range(2):
        record = model.heads()[0]
        model.assignment.gave_up(record.offset)
        model.assignment.complete(record.offset)
        model.waiting.remove(record)
        model.end(model.waiting[0])
        model.snapshot(ends=0, then="written", piece=8, commits=2)
    model.end(model.waiting[0])
    model.crash(1, damages=True, piece=1)
    model.state_is_the_models()
    assert model.damaged
    assert len(model.view.increment(Committed(0, ""), LARGEST_PIECE)[0].snapshots) == 1


async def test_a_truncated_log_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the state needs is deleted: which offset, where the log begins, and what to do."""
    machine = Model()
    machine.begin(False, 0)
    machine.deliver([(0, 1), (1, 2), (2, 3)])
    for record in [*machine.waiting]:
        machine.view.begin(record)
        machine.assignment.complete(record.offset)
    machine.commit(False, False)
    machine.logs.truncate(P0, 2)
    assert machine.committed is not None
    with pytest.raises(StateLogTruncated, match=r"in-0: .*from offset 0 on.*begins at 2.*retention\.ms") as raised:
        await machine.restored(machine.committed)
    assert (raised.value.needed, raised.value.begins) == (0, 2)
