from __future__ import annotations

import random

import pytest

from aioparallel.cli.demo.checks import observe, predecessors
from aioparallel.cli.demo.events import Event, Kind, Place

A = {Place(0, 0): b"a", Place(0, 1): b"a", Place(0, 2): b"a", Place(0, 3): b"b", Place(0, 4): None, Place(0, 5): None}


def events(script: str) -> list[Event]:
    """Events from words like ``0+2`` (run 0 began offset 2), ``0-2`` (completed it), ``0x2`` (failed)."""
    kinds = {"+": Kind.BEGAN, "-": Kind.COMPLETED, "x": Kind.FAILED}
    return [
        Event(kinds[word[1]], int(word[0]), 0, 1, int(word[2:]), (at + 1) * 1_000_000_000)
        for at, word in enumerate(script.split())
    ]


def test_all_in_order() -> None:
    """Nothing is lost, repeated or out of order when each key's records run one after the other."""
    seen = observe(events("0+0 0+3 0+4 0+5 0-5 0-0 0+1 0-3 0-1 0+2 0-4 0-2"), A)
    assert (seen.lost, seen.duplicates, seen.key_order_violations) == (0, 0, 0)
    assert (seen.calls, seen.records, seen.seconds) == (6, 6, 11.0)
    assert seen.rate == pytest.approx(6 / 11)


def test_lost_means_never_completed() -> None:
    """A record that began but never ended is lost, as is one that was never seen."""
    seen = observe(events("0+0 0-0 0+1 0-1 0+3 0-3 0+4"), A)
    assert seen.lost == 3


def test_killed_process_repeats_what_was_not_committed() -> None:
    """After a kill earlier records run again: duplicates, but the order of the key holds."""
    seen = observe(events("0+0 0-0 0+1 0-1 0+2 1+0 1-0 1+1 1-1 1+2 1-2"), A)
    assert (seen.duplicates, seen.key_order_violations) == (2, 0)
    assert seen.records == 3


def test_both_sides_of_a_swap_are_counted() -> None:
    """The record that ran too early is a violation, and so is the one that ran after it, too late."""
    assert observe(events("0+0 0-0 0+2 0-2 0+1 0-1"), A).key_order_violations == 2


def test_going_back_to_a_completed_record_is_a_duplicate() -> None:
    """A process that lost its session and got the partition again repeats what it had not committed, in order."""
    seen = observe(events("0+0 0-0 0+1 0-1 0+2 0x2 0+0 0-0 0+1 0-1 0+2 0-2"), A)
    assert (seen.duplicates, seen.key_order_violations) == (2, 0)


def test_retry_is_no_violation() -> None:
    """A record that failed may begin again before the next one of its key."""
    assert observe(events("0+0 0x0 0+0 0-0 0+1 0-1"), A).key_order_violations == 0


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("0+0 0+1 0-0 0-1", "two of a key at once"),
        ("0+1 0-1", "the one before never ran"),
        ("0+0 0x0 0+1 0-1", "the one before failed"),
        ("0+0 1+1 1-1", "a kill interrupted the one before, which did not run again"),
        ("0+0 0-0 0+2 1+1 1-1 1+2 1-2", "a process skipped one, and the next process ran it"),
    ],
)
def test_each_break_of_order_is_counted_once(script: str, what: str) -> None:
    """Each way to break the order of a key is one violation."""
    assert observe(events(script), A).key_order_violations == 1, what


def test_records_without_a_key_have_no_order() -> None:
    """They may run at the same time and in any order."""
    assert observe(events("0+5 0+4 0-4 0-5 0+5 0-5"), A).key_order_violations == 0


def test_service_may_answer_a_killed_process_late() -> None:
    """The answer to a killed process neither ends the record in the next process nor breaks its order."""
    assert observe(events("0+0 1+0 0-0 1-0 1+1 1-1"), A).key_order_violations == 0
    assert observe(events("0+0 1+0 0-0 1+1 1-1 1-0"), A).key_order_violations == 1


def test_nothing_seen() -> None:
    """Without events everything is lost, and the rate is 0 instead of a division by zero."""
    seen = observe([], A)
    assert (seen.lost, seen.rate, seen.seconds) == (6, 0.0, 0.0)


def test_predecessors_stay_within_partition_and_key() -> None:
    """The record before another one has the same key in the same partition."""
    keys = {Place(0, 0): b"k", Place(1, 1): b"k", Place(0, 2): b"k", Place(0, 1): b"other", Place(0, 3): None}
    assert predecessors(keys) == {Place(0, 2): Place(0, 0)}


@pytest.mark.parametrize("seed", range(20))
def test_any_run_with_kills_in_key_order_passes(seed: int) -> None:
    """A model consumer that keeps key order and is killed now and then never violates; swapping does."""
    rng = random.Random(seed)
    keys: dict[Place, bytes | None] = {Place(0, offset): rng.choice([b"a", b"b", b"c"]) for offset in range(60)}
    log = model_run(keys, rng)
    seen = observe(log, keys)
    assert (seen.lost, seen.key_order_violations) == (0, 0)
    before = predecessors(keys)
    place = rng.choice(list(before))
    first = next(index for index, event in enumerate(log) if event.place == before[place])
    early = Event(Kind.BEGAN, log[first].run, 0, 1, place.offset, 1)
    assert observe([*log[:first], early, *log[first:]], keys).key_order_violations > 0


def model_run(keys: dict[Place, bytes | None], rng: random.Random) -> list[Event]:
    """Processes that commit at some time below what is incomplete and are killed at random; the last one ends."""
    log: list[Event] = []
    committed = 0
    for run in range(4):
        waiting = [place for place in sorted(keys) if place.offset >= committed]
        running: list[Place] = []
        for _ in range(rng.randrange(20, 60) if run < 3 else 10_000):
            busy = {keys[place] for place in running}
            ready = [place for place in waiting if keys[place] not in busy and place == first_of(place, waiting, keys)]
            if ready and (not running or rng.random() < 0.6):
                place = rng.choice(ready)
                waiting.remove(place)
                running.append(place)
                log.append(Event(Kind.BEGAN, run, 0, 1, place.offset, len(log) + 1))
            elif running:
                place = running.pop(rng.randrange(len(running)))
                log.append(Event(Kind.COMPLETED, run, 0, 1, place.offset, len(log) + 1))
        lowest_incomplete = min((place.offset for place in waiting + running), default=len(keys))
        committed = rng.randint(committed, lowest_incomplete)
    return log


def first_of(place: Place, waiting: list[Place], keys: dict[Place, bytes | None]) -> Place:
    """The first waiting record of the same key."""
    return next(other for other in waiting if keys[other] == keys[place])
