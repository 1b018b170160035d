"""The benchmark's records: the same from the same seed, as planned, with the bound that follows from them."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from aioparallel.cli.bench.cases import contest_cases
from aioparallel.cli.bench.workload import Shape, Workload, read_plan

SHAPE = Shape(records=1_003, keys=20, partitions=4, sleep=(0, 1_000, 2_000))


def keys_of(workload: Workload) -> list[bytes | None]:
    return [message.key for partition in range(len(workload.partitions)) for message in workload.messages(partition)]


def test_a_seed_makes_the_same_records() -> None:
    """Another one makes others."""
    assert keys_of(SHAPE.workload(1)) == keys_of(SHAPE.workload(1)) != keys_of(SHAPE.workload(2))


def test_keys_are_spread_evenly_and_decide_the_partition() -> None:
    """All of them are there, each as often as any other, give or take one, with values of 100 bytes."""
    workload = SHAPE.workload(1)
    counts = np.bincount(np.concatenate([partition.keys for partition in workload.partitions]))
    assert counts.size == 20
    assert set(counts) == {50, 51}
    for number, planned in enumerate(workload.partitions):
        messages = list(workload.messages(number))
        assert len(messages) == planned.keys.size
        assert all(message.key and crc32(message.key) % 4 == number for message in messages)
        assert {len(message.value) for message in messages} <= {100}


def test_equal_keys_have_equal_numbers() -> None:
    """And only they."""
    workload = SHAPE.workload(1)
    numbers = [int(key) for partition in workload.partitions for key in partition.keys]
    assert len(set(zip(keys_of(workload), numbers, strict=True))) == 20


def test_there_are_no_more_keys_than_records() -> None:
    """A quick run of a case with many keys."""
    assert sorted(Shape(50, 1_000, 1).workload(1).partitions[0].keys) == list(range(50))


def test_every_sleep_is_used() -> None:
    """Each about as often."""
    sleeps = np.concatenate([partition.sleeps for partition in SHAPE.workload(1).partitions])
    values, counts = np.unique(sleeps, return_counts=True)
    assert values.tolist() == [0, 1_000, 2_000]
    assert counts.min() > 250


def test_the_plan_reads_back(tmp_path: Path) -> None:
    """As two little-endian numbers an offset."""
    workload = SHAPE.workload(1)
    workload.write_plan(tmp_path)
    for number, planned in enumerate(workload.partitions):
        found = read_plan(tmp_path, number)
        assert np.array_equal(found.keys, planned.keys)
        assert np.array_equal(found.sleeps, planned.sleeps)
    assert (tmp_path / "partition-0.bin").stat().st_size == 8 * workload.partitions[0].keys.size


def test_the_bound_is_the_longest_lane_or_the_work_by_concurrency() -> None:
    """Whichever is more; a lane is a key, a partition, or a record."""
    workload = Shape(records=100, keys=4, partitions=1, sleep=(10_000,)).workload(1)
    assert workload.total == pytest.approx(1.0)
    assert workload.bound("partition", 50) == pytest.approx(1.0)
    assert workload.bound("key", 50) == pytest.approx(0.25)
    assert workload.bound("key", 2) == pytest.approx(0.5)
    assert workload.bound("unordered", 50) == pytest.approx(0.02)
    assert workload.bound("unordered", 1_000) == pytest.approx(0.01)


def test_handlers_that_do_not_sleep_have_no_bound() -> None:
    """Nothing but the machine holds them up."""
    assert Shape(100, 4, 2).workload(1).bound("partition", 1) is None


def test_flights_without_a_key_are_lanes_of_their_own() -> None:
    """Their keys stay empty; tail numbers share a partition and a number."""
    workload = Shape(20_000, 0, 8, (2_000,), "flights").workload(1)
    seen: dict[bytes, set[tuple[int, int]]] = {}
    without: list[int] = []
    for number, planned in enumerate(workload.partitions):
        for key, message in zip(planned.keys.tolist(), workload.messages(number), strict=True):
            assert message.value.startswith(b"{")
            if message.key is None:
                without.append(key)
            else:
                seen.setdefault(message.key, set()).add((number, key))
    assert all(len(places) == 1 for places in seen.values())
    tail_numbers = {key for places in seen.values() for _, key in places}
    assert len(tail_numbers) == len(seen)
    assert len(without) == len(set(without)) > 0
    assert tail_numbers.isdisjoint(without)
    assert workload.longest_lane("key") == pytest.approx(0.002 * max(map(len, of_lanes(workload).values())))


def of_lanes(workload: Workload) -> dict[int, list[int]]:
    lanes: dict[int, list[int]] = {}
    for planned in workload.partitions:
        for offset, key in enumerate(planned.keys.tolist()):
            lanes.setdefault(key, []).append(offset)
    return lanes


def test_cases_have_names_of_their_own() -> None:
    """Only those of the groups asked for, smaller when asked for."""
    cases = contest_cases("abcde")
    assert len({case.name for case in cases}) == len(cases) == 23
    assert {case.name for case in contest_cases(["c", "d"])} == {"c-sleep", "d-flights"}
    assert contest_cases("c", scale=20)[0].shape.records == 25_000
    assert all(case.shape.records >= 5 * case.concurrency for case in contest_cases("e", scale=20))
