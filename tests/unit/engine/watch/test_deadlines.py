"""Deadlines: one timeout for all, time passed in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.engine.watch.deadlines import Deadlines


def enter(deadlines: Deadlines[str], one: str, now: float) -> None:
    """What a worker does when its handler suspends."""
    deadlines.running[one] = now + deadlines.seconds


def test_nothing_runs_nothing_is_due() -> None:
    """Without anything that runs there is no next time, however late it is."""
    deadlines = Deadlines[str](5.0)
    assert deadlines.next_time is None
    assert deadlines.due(1e9) == []


def test_due_at_the_deadline_and_not_before() -> None:
    """What runs is due once its seconds have passed, that instant included."""
    deadlines = Deadlines[str](5.0)
    enter(deadlines, "a", 10.0)
    assert deadlines.next_time == 15.0
    assert deadlines.due(14.999) == []
    assert deadlines.due(15.0) == ["a"]


def test_due_once() -> None:
    """What was taken out as due is due no more, and its worker may leave without a look."""
    deadlines = Deadlines[str](5.0)
    enter(deadlines, "a", 0.0)
    enter(deadlines, "b", 1.0)
    assert deadlines.due(5.0) == ["a"]
    assert deadlines.due(5.0) == []
    assert deadlines.running.pop("a", None) is None
    assert deadlines.next_time == 6.0


def test_so_many_are_due_at_once() -> None:
    """The earliest of them; the others stay due."""
    deadlines = Deadlines[str](5.0)
    for number in range(5):
        enter(deadlines, f"{number}", number)
    assert deadlines.due(8.0, 2) == ["0", "1"]
    assert deadlines.due(8.0, 9) == ["2", "3"]
    assert deadlines.next_time == 9.0


def test_what_has_ended_is_never_due() -> None:
    """A handler that ended in time has no deadline, and the one after it is the next."""
    deadlines = Deadlines[str](5.0)
    enter(deadlines, "a", 0.0)
    enter(deadlines, "b", 2.0)
    deadlines.running.pop("a", None)
    assert deadlines.next_time == 7.0
    assert deadlines.due(6.9) == []
    assert deadlines.due(7.0) == ["b"]


def test_one_worker_runs_again_and_again() -> None:
    """A worker that enters anew stands behind those that started before."""
    deadlines = Deadlines[str](5.0)
    enter(deadlines, "a", 0.0)
    enter(deadlines, "b", 1.0)
    deadlines.running.pop("a", None)
    enter(deadlines, "a", 3.0)
    assert deadlines.due(100.0) == ["b", "a"]


@given(
    seconds=st.floats(0, 10),
    steps=st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["enter", "leave", "due"]), st.integers(0, 3))),
)
def test_against_a_list(seconds: float, steps: list[tuple[float, str, int]]) -> None:
    """Any order of entering, leaving and looking gives what a list of all deadlines gives."""
    deadlines, expected, now = Deadlines[str](seconds), dict[str, float](), 0.0
    for passes, step, number in steps:
        now += passes
        one = f"worker {number}"
        if step == "enter" and one not in expected:
            enter(deadlines, one, now)
            expected[one] = now + seconds
        elif step == "leave":
            deadlines.running.pop(one, None)
            expected.pop(one, None)
        elif step == "due":
            due = deadlines.due(now)
            assert set(due) == {name for name, when in expected.items() if when <= now}
            whens = [expected.pop(name) for name in due]
            assert whens == sorted(whens)
        assert deadlines.next_time == min(expected.values(), default=None)
