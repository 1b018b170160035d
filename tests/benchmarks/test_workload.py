"""The benchmark's records: the same from the same seed, as planned, with the bound that follows from them."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from aioparallel.records.errors import AioparallelError
from aioparallel.testing import EmbeddedBroker
from benchmarks.cases import CASES, GROUPS, chosen
from benchmarks.workload import Shape, fill_topic, read_back

SHAPE = Shape(records=1_003, keys=20, partitions=4, sleep=(0, 1_000, 2_000))


def test_a_seed_makes_the_same_records() -> None:
    """Another one makes others. Keys are spread evenly and decide the partition; values say their place."""
    workload = SHAPE.workload(1)
    assert workload.keys_by_offset == SHAPE.workload(1).keys_by_offset != SHAPE.workload(2).keys_by_offset
    assert set(np.bincount(workload.keys)) == {50, 51}
    for partition in range(4):
        for offset, message in enumerate(workload.messages(partition)):
            assert message["key"] is not None
            assert crc32(message["key"]) % 4 == partition
            assert message["value"] == f"{partition} {offset} ".encode().ljust(100, b".")


def test_flights_without_a_key_are_lanes_of_their_own() -> None:
    """They have no key in the topic, and no order."""
    workload = Shape(5_000, 0, 8, source="flights").workload(1)
    without = [number for number, name in enumerate(workload.names) if name is None]
    assert without
    assert all((workload.keys == number).sum() == 1 for number in without)
    message = next(workload.messages(0))
    assert message["value"] is not None
    assert message["value"].startswith(b'{"year":2013,')


def test_the_bound_is_the_longest_lane_or_the_work_by_concurrency() -> None:
    """Whichever is more; a lane is a key, a partition, or a record. Handlers that do not sleep have none."""
    workload = Shape(records=100, keys=4, partitions=1, sleep=(10_000,)).workload(1)
    assert workload.bound("partition", 50) == pytest.approx(1.0)
    assert workload.bound("key", 50) == pytest.approx(0.25)
    assert workload.bound("key", 2) == pytest.approx(0.5)
    assert workload.bound("unordered", 1_000) == pytest.approx(0.01)
    assert Shape(100, 4, 1).workload(1).bound("key", 50) is None


def test_sleeps_are_written_for_contestants(tmp_path: Path) -> None:
    """Four bytes an offset."""
    workload = SHAPE.workload(1)
    workload.write_sleeps(tmp_path / "sleeps")
    for partition, places in enumerate(workload.places):
        found = np.fromfile(tmp_path / "sleeps" / f"{partition}.bin", "<u4")
        assert found.tolist() == workload.sleeps[places].tolist()


async def test_a_topic_that_is_not_as_planned_is_refused() -> None:
    """Its order would be held against the contestants; what was not filled would be called lost."""
    async with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        await broker.create_topic("other", SHAPE.partitions)
        await fill_topic(servers, "other", SHAPE.workload(1))
        with pytest.raises(AioparallelError, match=r"partition \d, offset \d+ of other is not the record planned"):
            read_back(servers, "other", SHAPE.workload(2))
        await broker.create_topic("empty", SHAPE.partitions)
        with pytest.raises(AioparallelError, match="empty has 0 of 1003 records"):
            read_back(servers, "empty", SHAPE.workload(1))


def test_cases_have_names_of_their_own() -> None:
    """Each belongs to a group; a quick run has some of each, with fewer records."""
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    quick = chosen("".join(GROUPS), (), quick=True, scale=20)
    assert {case.group for case in CASES} == set(GROUPS) == {case.group for case in quick}
    assert sum(case.shape.records for case in quick) < sum(case.shape.records for case in CASES) / 10
    (only,) = chosen("a", ["getmany"], quick=True, scale=20)
    assert only.contestants == ("getmany",)
