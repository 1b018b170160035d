"""The checks find every defect that is planted in a right run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from aioparallel.testing.event_log import Event, EventKind
from benchmarks.checks import check_events, ended_at_once, peak_in_flight
from benchmarks.workload import Lane, Shape, Workload

WORKLOAD = Shape(records=200, keys=10, partitions=2, sleep=(1_000,)).workload(1)


def began(partition: int, offset: int) -> Event:
    return Event(EventKind.BEGAN, partition, offset)


def played(workload: Workload, seed: int) -> list[Event]:
    """What a right consumer does whose handlers take a random time: several at once, keys in order."""
    chance, events, running = random.Random(seed), list[Event](), list[Event]()
    waiting = [began(part, at) for part, keys in enumerate(workload.keys_by_offset) for at in range(len(keys))]

    def key(event: Event) -> tuple[int, bytes | None]:
        return event.partition, workload.keys_by_offset[event.partition][event.offset]

    while waiting or running:
        lanes = {key(event) for event in running}
        ready = next((event for event in waiting if key(event) not in lanes), None)
        if ready is not None and len(running) < 8 and (not running or chance.random() < 0.6):
            waiting.remove(ready)
            running.append(ready)
            events.append(ready)
        else:
            events.append(running.pop(chance.randrange(len(running)))._replace(kind=EventKind.ENDED))
    return events


@pytest.mark.parametrize("seed", range(5))
def test_a_right_run_has_no_problems(seed: int) -> None:
    """As it is, cut off where it was stopped, and with handlers that end at once."""
    events = played(WORKLOAD, seed)
    assert check_events([events], WORKLOAD, "key") == []
    assert check_events([events[:77]], WORKLOAD, "key", stopped=True) == []
    at_once = ended_at_once([event for event in events if event.kind is EventKind.BEGAN])
    assert check_events([at_once], WORKLOAD, "key") == []
    assert 1 < peak_in_flight(events) <= 8
    assert peak_in_flight(at_once) == 1


def lose(events: list[Event]) -> None:
    """A record that is never handled."""
    events[:] = [event for event in events if event[1:3] != (0, 5)]


def no_end(events: list[Event]) -> None:
    """A handler that does not end."""
    events.remove(Event(EventKind.ENDED, 0, 5))


def no_beginning(events: list[Event]) -> None:
    """An end without a beginning."""
    events.remove(began(0, 5))


def again(events: list[Event]) -> None:
    """A record that is handled twice."""
    events += ended_at_once([began(1, 7)])


def unknown(events: list[Event]) -> None:
    """A record that the topic does not have."""
    events += ended_at_once([began(1, 7_000)])


def of_one_key() -> tuple[Event, Event]:
    """Two records of one key, one right behind the other in it."""
    keys = WORKLOAD.keys_by_offset[0]
    second = next(at for at in range(1, len(keys)) if keys[at] in keys[:at])
    return began(0, keys.index(keys[second])), began(0, second)


def swap(events: list[Event]) -> None:
    """Two records of a key that change places."""
    first, second = of_one_key()
    for kind in (EventKind.BEGAN, EventKind.ENDED):
        one, other = (events.index(event._replace(kind=kind)) for event in (first, second))
        events[one], events[other] = events[other], events[one]


def overlap(events: list[Event]) -> None:
    """A record that begins before the one in front of it in its key has ended."""
    first, second = of_one_key()
    events.remove(second)
    events.insert(events.index(first) + 1, second)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lose, "1 records whose handler never ended: partition 0, offset 5"),
        (no_end, "1 records whose handler never ended: partition 0, offset 5"),
        (no_beginning, "1 handlers ended that had not begun"),
        (again, "1 records handled more than once: partition 1, offset 7"),
        (unknown, "1 records that the topic does not have: partition 1, offset 7000"),
        (swap, "backwards: "),
        (overlap, "overlap: "),
    ],
)
def test_a_planted_defect_is_found(plant: Callable[[list[Event]], None], problem: str) -> None:
    """It is named with partition and offset."""
    events = played(WORKLOAD, 1)
    plant(events)
    assert any(problem in found for found in check_events([events], WORKLOAD, "key"))


@pytest.mark.parametrize(("order", "problems"), [("key", False), ("partition", True), ("unordered", False)])
def test_the_order_is_the_one_that_was_promised(order: Lane, problems: bool) -> None:
    """A run in key order is none in the order of the partition, and fits where nothing was promised."""
    assert bool(check_events([played(WORKLOAD, 2)], WORKLOAD, order)) == problems


def test_after_a_crash_records_may_come_again() -> None:
    """Those that ran may repeat, none may be lost, and the interrupted ones run before what is behind them."""
    events = played(WORKLOAD, 3)
    first, rest = events[:101], played(WORKLOAD, 4)
    assert check_events([first, rest], WORKLOAD, "key", repeats=True) == []
    assert check_events([first, rest], WORKLOAD, "key") != []
    ran = {event[1:3] for event in first}
    rest = [event for event in rest if event[1:3] not in ran]
    assert any("never ended" in problem for problem in check_events([first, rest], WORKLOAD, "key", repeats=True))


def test_members_keep_their_order_each() -> None:
    """Of two processes at the same time that share the records by partition."""
    halves = [[event for event in played(WORKLOAD, 5) if event.partition == number] for number in range(2)]
    assert check_events(halves, WORKLOAD, "key", together=True) == []
    assert check_events([halves[0], []], WORKLOAD, "key", together=True) != []


def test_of_many_problems_the_first_are_told_and_all_counted() -> None:
    """In one sentence for each kind."""
    small = replace(WORKLOAD.shape, records=100).workload(1)
    (problem,) = check_events([[]], small, "key")
    assert problem.startswith("100 records whose handler never ended: partition 0, offset 0; partition 0, offset 1;")
    assert problem.endswith(", ...")
