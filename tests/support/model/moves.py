"""What may happen to scheduler, ledger, retry timers and commits, done to them and to the model alike.

It plays what surrounds the sync core: a pool of workers, time, the coordinator, other members.
"""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from aioparallel.engine.isolation import ENDED
from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.sinks import Offered
from aioparallel.engine.sources import NO_CEILING
from aioparallel.records.record import Record, TopicPartition
from tests.support.engine.taking import take
from tests.support.model.assignments import PARTITION, PARTITIONS, PICK, Assignments, with_single
from tests.support.model.group import TOPIC, Fate
from tests.support.model.model import BEGUN, UNFINISHED, Entry, State

__all__ = ["Moves"]

MAX_PRODUCING = 4
OUTPUT = object()
"""What the step of a record returns whose handler has ended with something to produce."""


class Moves(Assignments):
    """Start, succeed, produce, fail, park, wake, put back, hold back, commit."""

    # -- starts -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.scheduler.ready)
    @rule(count=st.integers(1, 5))
    def start(self, count: int) -> None:
        """Workers that are free take what is next."""
        for _ in range(count):
            if len(self.model.entries(State.IN_FLIGHT)) >= self.workers or not self._take():
                return

    def _take(self) -> bool:
        could = [one for holding in self.model.holdings.values() for one in self.model.startable(holding)]
        parked = self.model.parked_beside_pauses()
        record = take(self.scheduler)
        if record is None:
            assert not could, "nothing was started though something is ready"
            self.model.look((), None)
            return False
        entry = self._started(record, could, parked)
        self.model.look(could, entry)
        assert all(holding.passed_over <= PARTITIONS for holding in self.model.holdings.values()), "no turns"
        return True

    def _started(self, record: Record, could: list[Entry], parked: int) -> Entry:
        entry = next((one for one in could if one.record is record), None)
        assert entry is not None, f"I3: {record!r} was started: out of turn, held back, or twice"
        assert entry.tried or parked < self.max_parked, "I4: a new record was started at the bound of parked ones"
        assert record.attempt == 1 + entry.failed
        return entry

    @precondition(lambda self: self.scheduler.ready and len(self.model.entries(State.IN_FLIGHT)) < self.workers)
    @rule(
        most=st.integers(1, 5),
        looked_at=st.integers(0, 5),
        ends=st.integers(0, 5),
        outputs=st.sets(st.integers(1, 5)),
        sent_at=st.integers(0, 5),
        left=st.booleans(),
    )
    def run(
        self,
        most: int,
        looked_at: int,
        ends: int,
        outputs: Collection[int] = (),
        sent_at: int = 0,
        *,
        left: bool = False,
    ) -> None:
        """A worker runs some whose handlers end in their first step, those of ``outputs`` with something to produce,
        and perhaps one that goes on. One handler looks at the statistics, and somebody while outputs are sent; with
        ``left`` nothing more is waited for then."""
        started: list[Entry] = []

        def step(record: Record) -> object:
            could = [one for holding in self.model.holdings.values() for one in self.model.startable(holding)]
            entry = self._started(record, could, self.model.parked_beside_pauses())
            if not started:
                self.model.look(could, entry)  # one turn, however many start in it
            entry.state = State.IN_FLIGHT
            started.append(entry)
            if len(started) == looked_at:
                self.scheduler.flush_counters()
                self.check_all()
            if len(started) > ends:
                return None
            if len(started) in outputs:
                return OUTPUT
            self._ended(entry, EndState.SUCCEEDED)
            return ENDED

        def hand_over(record: Record, outcome: object) -> Offered | None:
            """There is room for some."""
            if outcome is not OUTPUT or len(self.model.entries(State.PRODUCING)) >= MAX_PRODUCING:
                return None
            if len(started) == sent_at:
                self.scheduler.flush_counters()
                self.check_all()
            if left:
                self._ended(started[-1], EndState.SUCCEEDED)
                return Offered.LEFT
            self._producing(started[-1])
            return Offered.LEAVING

        taken = self.scheduler.run_ready(step, hand_over, range(most))
        assert len(started) <= most
        assert len({entry.owner.partition for entry in started}) <= 1
        if started and started[-1].state is State.IN_FLIGHT:
            assert taken == (started[-1].record, OUTPUT if len(started) <= ends else None)
        else:
            assert taken is None

    def check_all(self) -> None:
        """Look at every invariant."""
        raise NotImplementedError

    @precondition(lambda self: self.scheduler.ready)
    @rule()
    def pause(self) -> None:
        """While paused nothing starts."""
        self.scheduler.pause()
        assert take(self.scheduler) is None
        self.scheduler.resume()

    @precondition(lambda self: not self.block and self.model.holdings and self.scheduler.unfinished)
    @rule(pick=PICK, below=st.booleans())
    def set_ceiling(self, pick: int, below: bool) -> None:
        """Hold back one record and what is above it, or nothing; in "block" the committer does it."""
        unfinished = self.model.entries(*UNFINISHED)
        entry = unfinished[pick % len(unfinished)]
        self.scheduler.set_ceiling(entry.owner.assignment, entry.offset - 1 if below else NO_CEILING)

    @rule(partition=PARTITION, paused=st.booleans())
    def pause_partition(self, partition: int, paused: bool) -> None:
        """Whether or not it is held: pause it, or resume it."""
        one = [TopicPartition(TOPIC, partition)]
        if paused:
            self.model.paused.add(partition)
            self.pauses.pause(one)
        else:
            self.model.paused.discard(partition)
            self.pauses.resume(one)
        self._follow_pauses()

    @rule(lanes=st.sets(st.sampled_from([b"a", b"b", b"ab", b""]), min_size=1, max_size=2), paused=st.booleans())
    def pause_lanes(self, lanes: set[bytes], paused: bool) -> None:
        """Of all partitions."""
        if paused:
            self.model.paused_lanes |= lanes
            self.pauses.pause_keys(TOPIC, lanes)
        else:
            self.model.paused_lanes -= lanes
            self.pauses.resume_keys(TOPIC, lanes)
        self._follow_pauses()

    def resume_all(self) -> None:
        """Nothing is paused any more."""
        for partition in list(self.model.paused):
            self.pause_partition(partition, paused=False)
        self.pause_lanes({b"a", b"b", b"ab", b""}, paused=False)

    def _follow_pauses(self) -> None:
        self.was_paused = True
        for holding in self.model.holdings.values():
            self.scheduler.follow_pauses((holding.assignment,))

    # -- outcomes ---------------------------------------------------------------------------------------

    def chosen(self, pick: int, *states: State) -> Entry:
        entries = self.singles(*states)
        return entries[pick % len(entries)]

    @precondition(with_single(State.IN_FLIGHT))
    @rule(pick=PICK)
    def succeed(self, pick: int) -> None:
        entry = self.chosen(pick, State.IN_FLIGHT)
        with_drain = self._drains_with(entry)
        self.scheduler.succeed(entry.record)
        self._ended(entry, EndState.SUCCEEDED)
        assert self.drained == with_drain

    @precondition(with_single(*BEGUN))
    @rule(pick=PICK, outcome=st.sampled_from([one for one in EndState if one is not EndState.RELEASED]))
    def end(self, pick: int, outcome: EndState) -> None:
        """Ended in flight (skipped, say), or producing and acknowledged."""
        entry = self.chosen(pick, *BEGUN)
        with_drain = self._drains_with(entry)
        self.scheduler.end(entry.record, outcome)
        self._ended(entry, outcome)
        assert self.drained == with_drain

    @precondition(with_single(State.PRODUCING))
    @rule(pick=PICK, most=st.integers(1, MAX_PRODUCING))
    def end_produced(self, pick: int, most: int) -> None:
        """A batch is acknowledged, its records in whatever order."""
        producing = self.singles(State.PRODUCING)
        first = pick % len(producing)
        entries = [*producing[first:], *producing[:first]][:most]
        self.drained = False
        drains = {entry.owner for entry in entries if entry.owner.stopped and not entry.owner.dropped}
        self.scheduler.end_produced([entry.record for entry in entries])
        for entry in entries:
            self._ended(entry, EndState.SUCCEEDED)
        assert self.drained == any(not owner.count(*BEGUN) for owner in drains)

    def _ended(self, entry: Entry, outcome: EndState) -> None:
        if not entry.owner.dropped:
            self.group.logs[entry.owner.partition].ended.add(entry.offset)
        self.model.end(entry, outcome.value)

    @precondition(with_single(State.IN_FLIGHT))
    @rule(pick=PICK)
    def produce(self, pick: int) -> None:
        if len(self.model.entries(State.PRODUCING)) < MAX_PRODUCING:
            entry = self.chosen(pick, State.IN_FLIGHT)
            self.scheduler.produce(entry.record)
            self._producing(entry)

    def _producing(self, entry: Entry) -> None:
        entry.state = State.PRODUCING
        self.most_producing = max(self.most_producing, len(self.model.entries(State.PRODUCING)))

    @precondition(with_single(*BEGUN))
    @rule(pick=PICK, delay=st.sampled_from([0.0, 1.0, 2.0, 5.0]))
    def fail(self, pick: int, delay: float) -> None:
        """The attempt failed, or its outputs were not taken."""
        self._fail(self.chosen(pick, *BEGUN), delay)

    def _fail(self, entry: Entry, delay: float) -> None:
        with_drain = self._drains_with(entry)
        assert self.scheduler.park(entry.record) == (not entry.owner.stopped)
        self.model.park(entry)
        assert self.drained == with_drain
        if entry.state is State.PARKED:
            self.retries.add(entry.record, self.now + delay)
            self.sleeping.append((self.now + delay, entry))

    @precondition(with_single(*BEGUN))
    @rule(pick=PICK)
    def put_back(self, pick: int) -> None:
        self._put_back(self.chosen(pick, *BEGUN))

    def _put_back(self, entry: Entry) -> None:
        with_drain = self._drains_with(entry)
        self.scheduler.put_back(entry.record)
        self.model.put_back(entry)
        assert self.drained == with_drain

    def _drains_with(self, entry: Entry) -> bool:
        """Whether a drain is over once this one has ended; that must be heard."""
        self.drained = False
        owner = entry.owner
        return owner.stopped and not owner.dropped and owner.count(*BEGUN) == 1

    @precondition(lambda self: self.sleeping)
    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 10.0]))
    def advance(self, seconds: float) -> None:
        """Time passes; what is due wakes in the order of its times."""
        self.now += seconds
        self.sleeping.sort(key=lambda one: one[0])
        due = [entry for when, entry in self.sleeping if when <= self.now]
        self.sleeping = self.sleeping[len(due) :]
        taken = self.retries.due(self.now)
        assert taken == [entry.record for entry in due]
        for entry in due:
            self.scheduler.unpark(entry.record)
            self.model.wake(entry)

    @precondition(lambda self: self.skippable)
    @rule(pick=PICK, more=st.sets(PICK, max_size=3))
    def skip(self, pick: int, more: Collection[int]) -> None:
        """Some records that wait, of one partition, end without a handler, wherever they are in their lanes."""
        waiting = self.skippable
        owner = waiting[pick % len(waiting)].owner
        mine = [entry for entry in waiting if entry.owner is owner]
        gone = {mine[one % len(mine)] for one in (pick, *more)}
        records = {entry.record for entry in gone}
        assert self.scheduler.find(owner.assignment) == {entry.offset: entry.record for entry in owner.entries}
        self.scheduler.skip(owner.assignment, records)
        self.retries.keep(lambda record: record not in records)
        self.sleeping = [one for one in self.sleeping if one[1] not in gone]
        for entry in gone:
            self._ended(entry, EndState.SKIPPED)
            self.counts_start()

    @property
    def skippable(self) -> list[Entry]:
        return [entry for entry in self.model.entries(State.BUFFERED, State.PARKED) if not entry.owner.stopped]

    def counts_start(self) -> None:
        """A record has left the buffer."""

    # -- commits ----------------------------------------------------------------------------------------

    @precondition(
        lambda self: not self.commits.waiting and any(h.assignment.dirty for h in self.model.holdings.values())
    )
    @rule(fate=st.sampled_from(Fate))
    def commit(self, fate: Fate) -> None:
        self.commits.begin(dict(self.model.holdings), fate)

    @precondition(lambda self: self.commits.waiting)
    @rule()
    def answer(self) -> None:
        self.commits.answer()
