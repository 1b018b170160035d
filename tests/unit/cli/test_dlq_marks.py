from __future__ import annotations

import random
from typing import cast

import pytest

from aioparallel.cli.dlq import marks as module
from aioparallel.cli.dlq.marks import Marks, MarksRefused, PartitionMarks
from aioparallel.cli.dlq.planning import make_plan
from aioparallel.cli.dlq.selecting import Selection
from aioparallel.group.client import Client, CommitFault, Committed, Fetched, Generation, Span

from .dead_letters import MINE, P0, Group, Place, letter_record, read_of, stranger


def marks_of(group: Group, beginning: int = 0, place: Place | None = None) -> Marks:
    """The marks as a new command finds them."""
    return Marks(cast("Client", group), "g", dict(group.committed_now), {P0: beginning}, place or Place())


def settled(marks: Marks, end: int) -> list[int]:
    return [offset for offset in range(end) if marks[0].is_settled(offset)]


async def settle(group: Group, offsets: list[int], end: int) -> None:
    """One command: the log has letters up to ``end``, and these are settled."""
    marks = marks_of(group)
    marks[0].register(list(range(end)), end)
    for offset in offsets:
        marks[0].settle(offset)
    await marks.save([0])


async def test_marks_over_commands() -> None:
    """What one command settles the next one knows, whatever the order, and all of it becomes one offset."""
    group = Group()
    done: list[int] = []
    for offsets in ([5], [0, 2], [3], [1]):
        await settle(group, offsets, 6)
        done += offsets
        assert settled(marks_of(group), 6) == sorted(done)
    assert group.committed_now[P0].offset == 4
    await settle(group, [4], 6)
    assert group.committed_now[P0] == Committed(6, "")
    assert set(group.generations) == {MINE}


async def test_random_commands_keep_every_mark() -> None:
    """Over any sequence of commands on a growing log with gaps, exactly the settled letters are settled."""
    rng = random.Random(4)
    for _ in range(30):
        group, done, log = Group(), set[int](), [offset for offset in range(60) if rng.random() < 0.7]
        end = 0
        for _ in range(8):
            end = min(60, end + rng.randrange(15))
            there = [offset for offset in log if offset < end]
            marks = marks_of(group)
            assert {offset for offset in there if marks[0].is_settled(offset)} == done
            marks[0].register(there, end)
            chosen = [offset for offset in there if offset not in done and rng.random() < 0.4]
            planned = marks[0].commit_with(set(chosen))
            for offset in chosen:
                marks[0].settle(offset)
            assert marks[0].commit_with() == planned
            await marks.save([0])
            done |= set(chosen)


async def test_first_open_letter() -> None:
    """It is what deletion stops at: the first that is open, also after what is only planned; else the end."""
    marks = marks_of(Group(), beginning=3)
    marks[0].register([3, 5, 8], 10)
    assert marks[0].first_open() == 3
    assert marks[0].first_open({3}) == 5
    assert marks[0].first_open({3, 8}) == 5
    assert marks[0].first_open({3, 5, 8}) == 10


def test_commit_that_is_behind_the_log() -> None:
    """Where retention has taken letters away, reading begins at the log's first offset, and marks pass the gap."""
    marks = PartitionMarks(P0, "g", Committed(2, ""), 10)
    marks.register([10, 11], 12)
    assert marks.commit_with({10}) == Committed(11, "")


def test_too_many_marks_do_not_fit() -> None:
    """Single letters without any pattern: told before anything is done; the same number at the front fits."""
    rng = random.Random(1)
    marks = PartitionMarks(P0, "g", None, 0)
    marks.register(list(range(100_000)), 100_000)
    assert marks.commit_with({offset for offset in range(100_000) if rng.random() < 0.5}) is None
    assert marks.commit_with(set(range(50_000))) == Committed(50_000, "")
    assert marks.commit_with(set(range(50_000, 100_000))) is not None


async def test_plan_refuses_a_partition_that_does_not_fit() -> None:
    """The plan leaves out its letters, and says how many and why."""
    rng = random.Random(1)
    records = [letter_record(offset, key=rng.choice([b"a", b"b"])) for offset in range(80_000)]
    marks = marks_of(Group())
    plan = await make_plan(read_of(Fetched(P0, records, 80_000)), marks, Selection(key=b"a"))
    count = len(plan.letters)
    plan.refuse_what_does_not_fit(marks)
    assert plan.letters == []
    reason, refused = plan.refused[0]
    assert refused == count
    assert "orders.dlq-0" in reason
    assert "oldest letters" in reason


async def test_plan() -> None:
    """It has the open letters that are meant, in the log's order; settled ones are counted."""
    group = Group()
    group.committed_now[P0] = Committed(2, "")
    records = [letter_record(1), letter_record(2, at=9.0), stranger(3), letter_record(4, at=8.0), letter_record(5)]
    marks = marks_of(group)
    plan = await make_plan(read_of(Fetched(P0, records, 6)), marks, Selection(partition=(0,), offsets=Span(0, 5)))
    assert [chosen.offset for chosen in plan.letters] == [2, 4]
    assert plan.already_settled == 1
    assert plan.origins() == {"orders": 2}
    plan = await make_plan(read_of(Fetched(P0, records, 6)), marks_of(group), Selection(limit=1))
    assert [chosen.offset for chosen in plan.letters] == [4]


async def test_passing_faults_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that moves does not lose a mark."""
    monkeypatch.setattr(module, "RETRY_PAUSE", 0.0)
    group = Group(CommitFault.RETRIABLE, CommitFault.RETRIABLE)
    await settle(group, [0], 3)
    assert group.committed_now[P0] == Committed(1, "")


async def test_a_group_that_agrees_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is fenced meanwhile is sent again under the generation that follows."""
    monkeypatch.setattr(module, "RETRY_PAUSE", 0.0)
    group = Group(CommitFault.FENCED)
    marks = marks_of(group, place=Place(MINE, Generation(8, "me")))
    marks[0].register([0], 1)
    marks[0].settle(0)
    await marks.save([0])
    assert group.generations == [MINE, Generation(8, "me")]
    assert group.committed_now[P0] == Committed(1, "")


async def test_a_place_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed any more, and what was settled is known to be unsaved."""
    monkeypatch.setattr(module, "RETRY_PAUSE", 0.0)
    group = Group(CommitFault.FENCED)
    marks = marks_of(group, place=Place(MINE, None))
    marks[0].register([0], 1)
    marks[0].settle(0)
    with pytest.raises(MarksRefused, match="lost"):
        await marks.save([0])
    assert marks.unsaved == {0: [0]}
    assert group.committed_now == {}


async def test_certainty_lasts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a portion the place is made sure of by a commit, unless one was acknowledged just before."""
    group = Group()
    marks = marks_of(group)
    await marks.confirm(0)
    await marks.confirm(0)
    assert len(group.generations) == 1
    monkeypatch.setattr(module, "CERTAIN_FOR", -1.0)
    await marks.confirm(0)
    assert len(group.generations) == 2
    with pytest.raises(MarksRefused, match="lost"):
        await marks_of(group, place=Place(None)).confirm(0)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (CommitFault.REFUSED, "READ on the group"),
        (CommitFault.METADATA_TOO_LARGE, "offset.metadata.max.bytes"),
    ],
)
async def test_refused_commits(fault: CommitFault, advice: str) -> None:
    """Each refusal says what to do, and what was settled is known to be unsaved."""
    marks = marks_of(Group(fault))
    marks[0].register([0, 1], 2)
    marks[0].settle(1)
    with pytest.raises(MarksRefused, match=advice):
        await marks.save([0])
    assert marks.unsaved == {0: [1]}
    await marks.save([0])
    assert marks.unsaved == {}


async def test_marks_changed_by_somebody_else() -> None:
    """A commit of another command since this one began is found out before anything is done."""
    group = Group()
    marks = marks_of(group)
    await settle(group, [0], 3)
    with pytest.raises(MarksRefused, match="only one at a time"):
        await marks.check_writable([0])
    assert group.committed_now[P0] == Committed(1, "")


async def test_check_renews_what_is_committed() -> None:
    """The check before a replay commits what the group knows already, unchanged."""
    group = Group()
    await settle(group, [1], 3)
    before = dict(group.committed_now)
    await marks_of(group).check_writable([0])
    assert group.committed_now == before


def test_unreadable_marks() -> None:
    """Foreign text beside the offset: what is below it is settled, and the problem is told."""
    marks = Marks(cast("Client", Group()), "g", {P0: Committed(3, "what is this")}, {P0: 0}, Place())
    assert settled(marks, 5) == [0, 1, 2]
    with pytest.raises(MarksRefused, match="Choose another --group"):
        marks.check_readable()
