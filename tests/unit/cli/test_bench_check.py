"""The checks of the benchmark: a good run passes, and each kind of wrong one is told of."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.cli.bench.check import Expected, check_events, check_evidence
from aioparallel.cli.bench.workload import Lane, Numbers


def planned(*keys: int) -> Numbers:
    return np.array(keys, np.uint32)


def problems(folder: Path, events: list[list[int]], expected: Expected) -> list[str]:
    """Of a run that wrote this down for each partition."""
    for partition, seen in enumerate(events):
        (folder / f"partition-{partition}.bin").write_bytes(np.array(seen, "<i4").tobytes())
    return check_evidence(folder, expected)


def sleeping(*keys: int, order: Lane = "key", stopped: bool = False) -> Expected:
    """One partition of records with these keys, by offset, whose handlers sleep."""
    return Expected([planned(*keys)], sleeps=True, order=order, stopped=stopped)


def at_once(*keys: int, order: Lane = "key", stopped: bool = False) -> Expected:
    """The same with handlers that return at once."""
    return Expected([planned(*keys)], sleeps=False, order=order, stopped=stopped)


def played(keys: list[int], concurrency: int, order: Lane, rng: random.Random) -> list[int]:
    """The evidence of a right consumer, with handlers that take a random time."""
    waiting, running, events = list(range(len(keys))), list[int](), list[int]()
    while waiting or running:
        lanes = {keys[offset] if order == "key" else 0 for offset in running if order != "unordered"}
        ready = []
        for offset in waiting:
            lane = keys[offset] if order == "key" else 0
            if order == "unordered" or lane not in lanes:
                ready.append(offset)
                lanes.add(lane)
        if ready and len(running) < concurrency and (not running or rng.random() < 0.6):
            offset = rng.choice(ready)
            waiting.remove(offset)
            running.append(offset)
            events.append(offset)
        else:
            events.append(~running.pop(rng.randrange(len(running))))
    return events


@given(
    st.lists(st.integers(0, 4), max_size=25), st.integers(1, 8), st.sampled_from(["key", "partition", "unordered"]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_right_run_has_no_problems(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], concurrency: int, order: Lane, rng: random.Random
) -> None:
    """Whatever a consumer does within its promise, the check accepts it: as it is, cut off, and without the ends."""
    folder = tmp_path_factory.mktemp("evidence")
    events = played(keys, concurrency, order, rng)
    assert problems(folder, [events], sleeping(*keys, order=order)) == []
    cut = events[: rng.randint(0, len(events))]
    assert problems(folder, [cut], sleeping(*keys, order=order, stopped=True)) == []
    begun = [event for event in events if event >= 0]
    assert problems(folder, [begun], at_once(*keys, order=order)) == []


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.randoms(use_true_random=False), st.data())
def test_any_two_records_of_a_key_swapped_are_found(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], rng: random.Random, data: st.DataObject
) -> None:
    """In a run without problems, two records of one key change places: told of, for both kinds of handlers."""
    offsets = sorted(range(len(keys)), key=keys.__getitem__)
    pairs = [(a, b) for a in offsets for b in offsets if a < b and keys[a] == keys[b]]
    if not pairs:
        return
    first, second = data.draw(st.sampled_from(pairs))
    swap = {first: second, second: first}
    events = [swap.get(one, one) if one >= 0 else ~swap.get(~one, ~one) for one in played(keys, 4, "key", rng)]
    folder = tmp_path_factory.mktemp("evidence")
    assert problems(folder, [events], sleeping(*keys))
    assert problems(folder, [[event for event in events if event >= 0]], at_once(*keys))
    assert problems(folder, [events], sleeping(*keys, order="unordered")) == []


def test_a_missing_record_is_found(tmp_path: Path) -> None:
    """It is named with partition, offset and key; a run that was stopped may miss some."""
    assert problems(tmp_path, [[0, ~0]], sleeping(7, 8)) == ["partition 0, offset 1 (key 8): was never handled"]
    assert problems(tmp_path, [[0]], at_once(7, 8)) == ["partition 0, offset 1 (key 8): was never handled"]
    assert problems(tmp_path, [[0]], at_once(7, 8, stopped=True)) == []


def test_a_repeated_record_is_found(tmp_path: Path) -> None:
    """Also in a run that was stopped."""
    expected = ["partition 0, offset 0 (key 7): began 2 times"]
    assert problems(tmp_path, [[0, 0, 1]], at_once(7, 8)) == expected
    assert problems(tmp_path, [[0, ~0, 0, ~0]], sleeping(7, 8, stopped=True)) == expected


def test_an_overlap_is_found(tmp_path: Path) -> None:
    """Two handlers of one key at once, or of one partition where that is the order; others may overlap."""
    events = [[0, 1, ~0, 2, ~1, ~2]]
    overlap = "partition 0, offset 2 (key 8): began before offset 1 of the same key had ended"
    assert problems(tmp_path, events, sleeping(7, 8, 8)) == [overlap]
    assert problems(tmp_path, events, sleeping(7, 8, 9)) == []
    assert problems(tmp_path, events, sleeping(7, 8, 8, order="unordered")) == []
    found = problems(tmp_path, events, sleeping(7, 8, 9, order="partition"))
    assert found == [
        "partition 0, offset 1 (key 8): began before offset 0 of the same partition had ended",
    ]


def test_a_reordered_record_is_found(tmp_path: Path) -> None:
    """One after the other, but not by ascending offset."""
    expected = ["partition 0, offset 0 (key 8): began after offset 2 of the same key"]
    assert problems(tmp_path, [[2, ~2, 0, ~0, 1, ~1]], sleeping(8, 7, 8)) == expected
    assert problems(tmp_path, [[2, 0, 1]], at_once(8, 7, 8)) == expected
    assert problems(tmp_path, [[2, 0, 1]], at_once(8, 7, 8, order="unordered")) == []


def test_ends_without_sense_are_found(tmp_path: Path) -> None:
    """A handler without an end, an end before its beginning, an end too many."""
    assert problems(tmp_path, [[0]], sleeping(7)) == ["partition 0, offset 0 (key 7): its handler never ended"]
    assert problems(tmp_path, [[0]], sleeping(7, stopped=True)) == []
    assert problems(tmp_path, [[~0, 0]], sleeping(7)) == ["partition 0, offset 0 (key 7): ended without having begun"]
    assert problems(tmp_path, [[0, ~0, ~0]], sleeping(7)) == ["partition 0, offset 0 (key 7): ended 2 times"]


def test_repeats_are_no_problem_where_they_are_expected() -> None:
    """After a crash a record that began runs again; one end is enough, and none is not. The order of keys is kept."""
    again = Expected([planned(7, 7)], sleeps=True, order="key", repeats=True)
    assert check_events([np.array([0, ~0, 1, ~1])], again) == []
    restarted = Expected([planned(7, 7)], sleeps=True, order="unordered", repeats=True)
    assert check_events([np.array([0, 1, ~1, 0, ~0, 1, ~1])], restarted) == []
    lost = check_events([np.array([0, 1, ~1, 0])], restarted)
    assert lost == ["partition 0, offset 0 (key 7): its handler never ended"]
    assert "of the same key" in check_events([np.array([0, 1, ~1, ~0])], again)[0]


def test_records_that_are_not_in_the_topic_are_found(tmp_path: Path) -> None:
    """An offset behind the last one, and a partition that was never written down."""
    assert problems(tmp_path, [[0, 1]], at_once(7)) == ["partition 0, offset 1: the topic has no such record"]
    two = Expected([planned(7), planned(7)], sleeps=False, order="key")
    found = problems(tmp_path, [[0]], two)
    assert found == ["there is no evidence of partition 1: No such file or directory"]


def test_of_many_problems_the_first_are_told_and_all_counted(tmp_path: Path) -> None:
    """Over all partitions."""
    two = Expected([planned(1, 2), planned(3, 4, 5)], sleeps=False, order="key")
    assert problems(tmp_path, [[], []], two) == [
        "partition 0, offset 0 (key 1): was never handled",
        "partition 0, offset 1 (key 2): was never handled",
        "partition 1, offset 0 (key 3): was never handled",
        "records never handled: 5 in all",
    ]


def test_half_a_million_records_are_checked_quickly(tmp_path: Path) -> None:
    """Well below the length of a run."""
    count = 500_000
    keys = np.random.default_rng(1).integers(0, 2_000, count).astype(np.uint32)
    events = np.stack([np.arange(count), ~np.arange(count)], axis=1).ravel().astype("<i4")
    (tmp_path / "partition-0.bin").write_bytes(events.tobytes())
    started = time.perf_counter()
    assert check_evidence(tmp_path, Expected([keys], sleeps=True, order="key")) == []
    assert time.perf_counter() - started < 30
