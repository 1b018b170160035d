"""Who is tried alone when a batch has failed as a whole, and for how long."""

from __future__ import annotations

from aioparallel.doubts import Doubt


def test_it_stands_until_enough_were_tried() -> None:
    """Eight, whatever becomes of them."""
    doubt = Doubt.after([])
    for well in (False, True) * 4:
        assert doubt.stands
        doubt.tried(well)
    assert not doubt.stands


def test_twice_as_many_when_some_were_well() -> None:
    """One of the others must be bad; of several that come together the most careful counts."""
    first = Doubt.after([])
    first.tried(well=True)
    second = Doubt.after([first, Doubt.after([])])
    for tried in range(16):
        assert second.stands
        second.tried(well=tried == 2)
    assert not second.stands


def test_as_many_when_none_was_well() -> None:
    """The service is down, which says nothing about who is bad."""
    first = Doubt.after([])
    first.tried(well=False)
    second = Doubt.after([first])
    for _ in range(8):
        assert second.stands
        second.tried(well=True)
    assert not second.stands
    assert (second.anybody_well, second.is_among_well) == (True, False)


def test_three_failures_and_no_success_are_an_outage() -> None:
    """The others need not be tried to know that."""
    doubt = Doubt.after([])
    for _ in range(3):
        assert doubt.stands
        doubt.tried(well=False)
    assert not doubt.stands


def test_some_are_alone_for_good() -> None:
    """Each has its own, so that nobody hears of another."""
    doubt = Doubt.for_good()
    for _ in range(1_000):
        doubt.tried(well=False)
    assert doubt.stands
    assert Doubt.for_good() is not doubt
