"""The memory of a partition against a model, with writes that are lost, late, and of an owner thought dead."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.persistence.dedup import remembered as memory_module
from aioparallel.persistence.dedup.identities import Identity, Mark, Position, RecordIdentity
from aioparallel.persistence.dedup.remembered import Changes, Memory

MOST = 40


def record(number: int) -> RecordIdentity:
    """A record of some source."""
    return RecordIdentity("t", number % 3, number, 0, "")


def check_chunks(memory: Memory) -> None:
    """Each identity is in one chunk, which is where it is looked for."""
    found = {identity: chunk for chunk in memory._chunks for identity in chunk.entries}
    assert found == memory._where
    assert len(found) == sum(len(chunk.entries) for chunk in memory._chunks)


class Topic:
    """A compacted topic: the last value of each key, in the order of writing."""

    def __init__(self) -> None:
        self.chunks: dict[tuple[str, int], dict[Identity, Position]] = {}

    def write(self, changes: Changes, upto: int | None = None) -> None:
        """All of it, or the first of it."""
        for name, number, entries in changes.changes[:upto]:
            self.chunks.pop((name, number), None)
            if entries is not None:
                self.chunks[name, number] = dict(entries)

    def restored(self, most: int = MOST) -> Memory:
        """A new owner's memory."""
        memory = Memory(most)
        for (name, number), entries in sorted(self.chunks.items(), key=lambda chunk: chunk[0][1]):
            memory.restore(name, number, entries)
        return memory


class Remembering(RuleBasedStateMachine):
    """What was seen last is remembered, whatever was lost that was not acknowledged."""

    @initialize(marks=st.booleans())
    def begin(self, marks: bool) -> None:
        self.marks = marks
        self.topic = Topic()
        self.memory = Memory(MOST)
        self.zombie: Memory | None = None
        self.under_way: list[tuple[Changes, dict[Identity, Position]]] = []
        self.model: dict[Identity, Position] = {}  # all that was ever seen, the newest last
        self.saved: dict[Identity, Position] = {}  # of it, what was acknowledged

    def _see(self, identity: Identity, position: Position) -> None:
        before = self.memory.position(identity)
        if before is not None and before >= position:
            return  # a copy, which is not handled
        self.memory.remember(identity, position)
        if self.model.get(identity, Position(-1)) < position:
            self.model.pop(identity, None)
            self.model[identity] = position

    @rule(numbers=st.lists(st.integers(0, 200), max_size=12))
    def see(self, numbers: list[int]) -> None:
        """Some records complete."""
        for number in numbers:
            if self.marks:
                self._see(Mark("t", 0, b"%d" % (number % 60)), Position(number, 0))
            else:
                self._see(record(number), Position(0, 0))

    @rule()
    def save(self) -> None:
        """What there is is sent; the answer comes later, or never."""
        self.under_way.append((self.memory.changes(), dict(self.model)))

    @precondition(lambda self: bool(self.under_way))
    @rule()
    def answer(self) -> None:
        """What was sent first is written, and that is acknowledged."""
        changes, said = self.under_way.pop(0)
        self.topic.write(changes)
        self.memory.written(changes)
        self.saved = said

    @rule(part=st.integers(0, 3))
    def die(self, part: int) -> None:
        """Of what has no answer a first part is written; the next owner finds what is there."""
        for changes, _ in self.under_way:
            self.topic.write(changes, part)
            if part < len(changes.changes):
                break
        self.under_way.clear()
        self.zombie, self.memory = self.memory, self.topic.restored()
        self.model = dict(self.saved)

    @precondition(lambda self: self.zombie is not None)
    @rule()
    def zombie_writes(self) -> None:
        """The owner before was only slow: what it writes says what was really seen, and spoils nothing."""
        assert self.zombie is not None
        self.topic.write(self.zombie.changes())
        self.zombie = None

    @invariant()
    def the_newest_are_remembered(self) -> None:
        """Those seen since the start by this owner, and what the one before had saved; never more than may be."""
        if not hasattr(self, "memory"):
            return
        newest = list(self.model)[-MOST // 2 :]
        for identity in newest:
            found = self.memory.position(identity)
            assert found is not None, identity
            assert found >= self.model[identity]
        assert len(self.memory) <= MOST

    @invariant()
    def each_is_in_one_chunk(self) -> None:
        """And that is the one that is looked into."""
        if hasattr(self, "memory"):
            check_chunks(self.memory)

    @rule()
    def what_was_saved_is_found_again(self) -> None:
        """By any next owner, whoever writes besides."""
        found = self.topic.restored(10 * MOST)
        for identity in list(self.saved)[-MOST // 2 :]:
            position = found.position(identity)
            assert position is not None, identity
            assert position >= self.saved[identity]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five entries, so that many are closed and put together."""
    monkeypatch.setattr(memory_module, "_ENTRIES", 5)


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(stateful_step_count=30)


@pytest.mark.parametrize("further", [range(10, 12), range(3, 12)])
def test_an_owner_thought_dead_writes_over_nothing(further: range) -> None:
    """It was only slow, and its newest chunk is not full: what its successor has saved since is found again, whether it
    writes before the successor's last commits or after them."""
    for early in (True, False):
        topic, first = Topic(), Memory(1_000)
        for number in range(8):
            first.remember(Mark("t", 0, b"%d" % number), Position(1, 0))
        changes = first.changes()
        topic.write(changes)
        first.written(changes)
        second = topic.restored(1_000)
        second.remember(Mark("t", 0, b"8"), Position(1, 0))
        changes = second.changes()
        topic.write(changes)
        second.written(changes)
        for number in further:
            first.remember(Mark("t", 0, b"%d" % number), Position(2, 0))
        late = first.changes()
        if early:
            topic.write(late)
        for number in range(9, 14):
            second.remember(Mark("t", 0, b"%d" % number), Position(1, 0))
            changes = second.changes()
            topic.write(changes)
            second.written(changes)
        if not early:
            topic.write(late)
        found = topic.restored(1_000)
        for number in range(14):
            mark = Mark("t", 0, b"%d" % number)
            position, saved = found.position(mark), second.position(mark)
            assert position is not None
            assert saved is not None
            assert position >= saved


@pytest.mark.parametrize("commits", [6, 40])
def test_what_was_found_is_copied_and_goes(commits: int) -> None:
    """However many owners come and go, few chunks stay; one that commits nothing new copies nothing."""
    topic, number = Topic(), 0
    for _ in range(100):
        memory = topic.restored(100)
        assert memory.changes().changes == []
        for _ in range(commits):
            memory.remember(record(number))
            number += 1
            changes = memory.changes()
            topic.write(changes)
            memory.written(changes)
        assert len(topic.chunks) <= 3 * (100 // 5)
    assert len(memory) == 100


def test_what_was_found_stays_until_all_of_it_is_copied() -> None:
    """Whoever wrote it may still move entries from one of its chunks to another."""
    topic, first = Topic(), Memory(1_000)
    for number in range(60):
        first.remember(record(number))
    topic.write(first.changes())
    second, gone = topic.restored(1_000), []
    for number in range(100, 104):
        second.remember(record(number))
        changes = second.changes()
        second.written(changes)
        gone.append(sum(1 for change in changes.changes if change.entries is None))
    assert gone == [0, 12, 0, 0]


def test_the_oldest_are_forgotten_first() -> None:
    """Not more than asked for, in the order in which they were seen."""
    memory = Memory(3)
    for number in range(6):
        memory.remember(record(number))
    assert [memory.position(record(number)) is not None for number in range(6)] == [False] * 3 + [True] * 3


def test_a_mark_only_rises_and_stays_while_it_does() -> None:
    """A mark that is moved further is among the newest."""
    memory = Memory(2)
    first, second, third = (Mark("t", 0, key) for key in (b"a", b"b", b"c"))
    memory.remember(first, Position(5, 0))
    memory.remember(second, Position(6, 0))
    memory.remember(first, Position(7, 1))
    memory.remember(first, Position(7, 0))
    memory.remember(third, Position(8, 0))
    assert (memory.position(first), memory.position(second)) == (Position(7, 1), None)


def test_a_commit_rewrites_little_and_few_chunks_stay() -> None:
    """One record at a time, saved each time: one chunk is written, and as many are kept as are needed for what is
    remembered, twice that at most."""
    memory, topic = Memory(100), Topic()
    for number in range(2_000):
        memory.remember(record(number))
        changes = memory.changes()
        assert sum(1 for change in changes.changes if change.entries is not None) == 1
        topic.write(changes)
        memory.written(changes)
    assert len(topic.chunks) <= 2 * 100 // 5


def test_what_was_forgotten_between_two_commits_goes_from_the_topic() -> None:
    """Whole chunks at once."""
    memory, topic = Memory(20), Topic()
    for number in range(1_000):
        memory.remember(record(number))
        if number % 100 == 0:
            changes = memory.changes()
            topic.write(changes)
            memory.written(changes)
    assert len(topic.chunks) <= 2 * 20 // 5


def test_what_was_put_together_is_known_and_written_as_one() -> None:
    """Positions stay, entries move further from there, and an answer that comes late says only what was sent."""
    memory, topic = Memory(100), Topic()
    for key in range(50):
        memory.remember(Mark("t", 0, b"%d" % key), Position(key, 0))
    for key in range(50):
        if key % 5:
            memory.remember(Mark("t", 0, b"%d" % key), Position(100 + key, 0))
    memory.remember(Mark("t", 0, b"1"), Position(499, 0))
    changes = memory.changes()
    check_chunks(memory)
    memory.remember(Mark("t", 0, b"0"), Position(500, 0))
    memory.remember(Mark("t", 0, b"new"), Position(501, 0))
    topic.write(changes)
    memory.written(changes)
    topic.write(memory.changes())
    found = topic.restored(1_000)
    assert len(found) == len(memory) == 51
    for identity in [Mark("t", 0, b"%d" % key) for key in range(50)] + [Mark("t", 0, b"new")]:
        assert found.position(identity) == memory.position(identity)


def test_idle_marks_do_not_keep_a_chunk_each() -> None:
    """Where most of a chunk has moved on, what is left of neighbours is put together."""
    memory, topic = Memory(10_000), Topic()
    for number in range(3_000):
        memory.remember(Mark("t", 0, b"busy"), Position(number, 0))
        if number % 5 == 0:
            memory.remember(Mark("t", 0, b"idle %d" % number), Position(number, 0))
        changes = memory.changes()
        topic.write(changes)
        memory.written(changes)
    assert len(memory) == 601
    assert len(topic.chunks) <= 2 * 601 // 5 + 2
    assert len(topic.restored(10_000)) == 601


def test_a_chunk_goes_after_the_one_that_took_its_entries() -> None:
    """Whatever part of it is written, each entry is there."""
    memory, topic = Memory(100), Topic()
    for key in range(50):
        memory.remember(Mark("t", 0, b"%d" % key), Position(key, 0))
    changes = memory.changes()
    topic.write(changes)
    memory.written(changes)
    for key in range(50):
        if key % 5:
            memory.remember(Mark("t", 0, b"%d" % key), Position(100 + key, 0))
    last = memory.changes()
    assert any(change.entries is None for change in last.changes)
    for change in last.changes:
        topic.write(Changes([change], []))
        assert len(topic.restored(1_000)) == 50


def test_nothing_new_is_nothing_to_write() -> None:
    """A commit without a completion costs nothing here."""
    memory = Memory(10)
    memory.remember(record(1))
    memory.written(memory.changes())
    assert memory.changes().changes == []
    memory.remember(record(1))
    assert memory.changes().changes == []


def test_long_keys_make_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is one record of Kafka, which has a largest size."""
    monkeypatch.setattr(memory_module, "_ENTRIES", 1_000)
    memory = Memory(1_000)
    for number in range(100):
        memory.remember(Mark("t", 0, b"%d" % number * 10_000), Position(number, 0))
    sizes = [
        sum(len(one.key) for one in change.entries or () if isinstance(one, Mark)) for change in memory.changes()[0]
    ]
    assert len(sizes) > 3
    assert max(sizes) < 300_000


def test_size_of_a_remembered_record() -> None:
    """What the documentation says of memory: some 300 bytes."""
    memory = Memory(100_000)
    identities = [RecordIdentity("t", 0, 1_000_000 + number, 0, "") for number in range(20_000)]
    tracemalloc.start()
    try:
        for identity in identities:
            memory.remember(RecordIdentity(*identity))
        size = tracemalloc.get_traced_memory()[0] / len(identities)
    finally:
        tracemalloc.stop()
    assert 100 < size < 300
