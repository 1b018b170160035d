"""What the demo computes from its logs: what is planted there is found, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from aioparallel.testing.event_log import Event, EventKind
from examples.flights.result import Observed, Result, enriched_places, observe, predecessors, show
from examples.flights.topic import PartitionOffsets, Place

KEYS = {
    Place(0, 0): b"a",
    Place(0, 1): b"a",
    Place(0, 2): b"a",
    Place(0, 3): b"b",
    Place(0, 4): None,
    Place(0, 5): None,
}
FINE = Observed(calls=2, records=2, duplicates=0, lost=0, out_of_order=0, seconds=0.5)
GOOD = Result(
    produced=2,
    plain=replace(FINE, seconds=20.0),
    handler=FINE,
    service=FINE,
    lines=Counter([Place(0, 0), Place(0, 1)]),
    offsets=[PartitionOffsets(0, 2, 2)],
    kills=0,
    kills_asked=0,
)


def seen(*runs: str) -> Observed:
    """What comes out of words like ``+2`` (offset 2 began), ``-2`` (completed), ``x2`` (failed), a second each."""
    kinds = {"+": EventKind.BEGAN, "-": EventKind.ENDED, "x": EventKind.FAILED}
    logs = [
        [Event(kinds[word[0]], 0, int(word[1:]), (at + 1) * 10**9) for at, word in enumerate(run.split())]
        for run in runs
    ]
    return observe(logs, KEYS)


def test_all_in_order() -> None:
    """Nothing is lost, repeated or out of order when each key's records run one after the other."""
    found = seen("+0 +3 +4 +5 -5 -0 +1 -3 -1 +2 -4 -2")
    assert found == Observed(calls=6, records=6, duplicates=0, lost=0, out_of_order=0, seconds=11.0)
    assert found.rate == pytest.approx(6 / 11)


def test_lost_means_never_completed() -> None:
    """A record that began but never ended is lost, as is one that was never seen; or all, when nothing was."""
    assert seen("+0 -0 +1 -1 +3 -3 +4").lost == 3
    nothing = seen()
    assert (nothing.lost, nothing.rate) == (6, 0.0)


def test_what_a_killed_process_repeats_is_counted() -> None:
    """After a kill earlier records run again: duplicates, but the order of the key holds."""
    found = seen("+0 -0 +1 -1 +2", "+0 -0 +1 -1 +2 -2")
    assert (found.duplicates, found.out_of_order) == (2, 0)


def test_going_back_to_a_completed_record_is_a_duplicate() -> None:
    """A process that lost its session and got the partition again repeats what it had not committed, in order."""
    found = seen("+0 -0 +1 -1 +2 x2 +0 -0 +1 -1 +2 -2")
    assert (found.duplicates, found.out_of_order) == (2, 0)


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        (["+0 +1 -0 -1"], "two of a key at once"),
        (["+1 -1"], "the one before never ran"),
        (["+0 x0 +1 -1"], "the one before failed"),
        (["+0", "+1 -1"], "what the kill had interrupted did not run again"),
        (["+0 -0 +2 -2", "+1 -1"], "one was overtaken, and ran only after the kill"),
        (["+0 -0 +2 -2", "+1 -1 +2 -2"], "the same, and the one that overtook it ran again"),
    ],
)
def test_each_break_of_order_is_counted_once(runs: list[str], what: str) -> None:
    """Each way to break the order of a key is one violation."""
    assert seen(*runs).out_of_order == 1, what


def test_both_sides_of_a_swap_are_counted() -> None:
    """The record that ran too early is a violation, and so is the one that ran after it, too late."""
    assert seen("+0 -0 +2 -2 +1 -1").out_of_order == 2


def test_retry_is_no_violation() -> None:
    """A record that failed may begin again before the next one of its key."""
    assert seen("+0 x0 +0 -0 +1 -1").out_of_order == 0


def test_records_without_a_key_have_no_order() -> None:
    """They may run at the same time and in any order."""
    assert seen("+5 +4 -4 -5 +5 -5").out_of_order == 0


def test_service_may_answer_a_killed_process_late() -> None:
    """The answer to a killed process stands in that one's log: it neither ends the record in the next process nor
    breaks its order there."""
    assert seen("+0 -0", "+0 -0 +1 -1").out_of_order == 0
    assert seen("+0 -0", "+0 +1 -1 -0").out_of_order == 1


def test_predecessors_stay_within_partition_and_key() -> None:
    """The record before another one has the same key in the same partition."""
    keys = {Place(0, 0): b"k", Place(1, 1): b"k", Place(0, 2): b"k", Place(0, 1): b"other", Place(0, 3): None}
    assert predecessors(keys) == {Place(0, 2): Place(0, 0)}


@pytest.mark.parametrize("seed", range(20))
def test_any_run_with_kills_in_key_order_passes(seed: int) -> None:
    """A model consumer that keeps key order and is killed now and then never violates; a record that begins before the
    one that precedes it does."""
    rng = random.Random(seed)
    keys: dict[Place, bytes | None] = {Place(0, offset): rng.choice([b"a", b"b", b"c"]) for offset in range(60)}
    runs = list(lives(keys, rng))
    found = observe(runs, keys)
    assert (found.lost, found.out_of_order) == (0, 0)
    early, previous = rng.choice(list(predecessors(keys).items()))
    life, at = next(
        (life, at) for life, run in enumerate(runs) for at, event in enumerate(run) if event.offset == previous.offset
    )
    runs[life].insert(at, Event(EventKind.BEGAN, *early))
    assert observe(runs, keys).out_of_order > 0


def lives(keys: dict[Place, bytes | None], rng: random.Random) -> Iterator[list[Event]]:
    """What processes do that commit at some time below what is incomplete and are killed at random; the last one
    ends."""
    committed = 0
    for life in range(4):
        waiting = [place for place in sorted(keys) if place.offset >= committed]
        running: list[Place] = []
        log: list[Event] = []
        for _ in range(rng.randrange(20, 60) if life < 3 else 10_000):
            busy = {keys[place] for place in running}
            first = {keys[place]: place for place in reversed(waiting)}  # of each key
            ready = [place for key, place in first.items() if key not in busy]
            if ready and (not running or rng.random() < 0.6):
                place = rng.choice(ready)
                waiting.remove(place)
                running.append(place)
                log.append(Event(EventKind.BEGAN, *place))
            elif running:
                log.append(Event(EventKind.ENDED, *running.pop(rng.randrange(len(running)))))
        yield log
        committed = rng.randint(committed, min((place.offset for place in waiting + running), default=len(keys)))


def printed(result: Result) -> str:
    """What is shown, without colours."""
    output = StringIO()
    show(result, Console(file=output, width=120, color_system=None))
    return output.getvalue()


def test_everything_held() -> None:
    """All checks pass, the speed-up is the quotient of the rates, and it says so without colours."""
    assert GOOD.passed
    assert GOOD.speed_up == pytest.approx(40.0)
    text = printed(GOOD)
    assert "40.0" in text
    assert (text.count("PASS"), text.count("FAIL")) == (4, 0)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (replace(GOOD, handler=replace(FINE, lost=1)), "no record lost"),
        (replace(GOOD, service=replace(FINE, lost=1)), "no record lost"),
        (replace(GOOD, lines=Counter([Place(0, 0)])), "no record lost"),
        (replace(GOOD, handler=replace(FINE, out_of_order=1)), "order of every key, as the handler saw it"),
        (replace(GOOD, service=replace(FINE, out_of_order=1)), "order of every key, as the service saw it"),
        (replace(GOOD, offsets=[PartitionOffsets(0, 1, 2)]), "committed offsets = end offsets"),
        (replace(GOOD, offsets=[PartitionOffsets(0, None, 2)]), "committed offsets = end offsets"),
        (replace(GOOD, kills=2, kills_asked=3), "consumer killed on the way"),
    ],
)
def test_each_broken_promise_fails_its_check(broken: Result, promise: str) -> None:
    """One broken promise fails exactly its own check, and with it the demo."""
    assert [check.promise for check in broken.checks() if not check.passed] == [promise]
    assert not broken.passed
    assert printed(broken).count("FAIL") == 1


def test_duplicates_are_shown_and_no_failure() -> None:
    """Delivery is at least once: what ran again is counted and passes, and the waiting after a kill is explained."""
    result = replace(
        GOOD,
        handler=replace(FINE, duplicates=7),
        lines=Counter({Place(0, 0): 4, Place(0, 1): 1}),
        kills=3,
        kills_asked=3,
    )
    assert result.passed
    text = printed(result)
    assert "│ duplicates (handler calls)     │          0 │           7 │" in text
    assert "│ duplicates (lines of the file) │            │           3 │" in text
    assert "waiting, after each kill" in text


def test_lines_are_counted_by_record(tmp_path: Path) -> None:
    """The file is read by the place of the record in each line."""
    path = tmp_path / "enriched.jsonl"
    path.write_text('{"partition":1,"offset":2}\n{"partition":1,"offset":2}\n')
    assert enriched_places(path) == {Place(1, 2): 2}
