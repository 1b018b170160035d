"""A group moves between the Java library and ours: each runs exactly what the other's commit leaves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import pytest

from aioparallel import Ordering
from tests.interop.conftest import GroupMaker
from tests.support.interop.group import Group, Place, said_by
from tests.support.interop.java_consumer import java_consumer
from tests.support.interop.java_programs import JavaPrograms
from tests.support.interop.our_consumer import OurConsumer, run_to_the_end

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]

_RANDOM = Random(6)


class Situation(NamedTuple):
    """How many records each partition has, and which offsets of it are stuck."""

    counts: list[int]
    stuck: list[set[int]]

    @property
    def places(self) -> set[Place]:
        """The stuck records."""
        return {Place(partition, offset) for partition, offsets in enumerate(self.stuck) for offset in offsets}


ONE_STUCK = Situation([10_001], [{0}])
PATTERNS = Situation(
    [5_000, 2_000, 5_000],
    [
        set(_RANDOM.sample(range(5_000), 50)),  # 1 in a hundred
        set(range(1, 2_000, 2)),  # every other one
        set(range(1_000, 3_000)) | {3_500, 4_999},  # a long run, one alone, and the very last
    ],
)
LONG = Situation([34_000, 1, 2_000], [{5}, {0}, set()])
"""More offsets than 16 bits count; a partition with nothing complete; one with nothing stuck."""


async def java_leaves(programs: JavaPrograms, group: Group, situation: Situation, directory: Path) -> None:
    """The Java library runs all but the stuck records of the group's topic and commits."""
    async with java_consumer(programs, group, directory, situation.places, "UNORDERED") as java:
        await group.committed_all_but(situation.places, java.check)
        assert java.complaints == ""
        await java.close()
    assert java.ran == Counter(set(group.places()) - situation.places)


async def java_runs_the_rest(programs: JavaPrograms, group: Group, directory: Path) -> Counter[Place]:
    """The Java library runs what is left of the group's topic; what it ran."""
    async with java_consumer(programs, group, directory) as java:
        await group.committed_all_but((), java.check)
        assert java.complaints == ""
        await java.close()
    return java.ran


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(ONE_STUCK, id="one-stuck"),
        pytest.param(PATTERNS, id="patterns"),
        pytest.param(LONG, id="long-and-empty", marks=pytest.mark.slow),
    ],
)
async def test_we_go_on_where_java_stopped(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path, situation: Situation
) -> None:
    """The Java library leaves stuck records and its commit; we run exactly these."""
    group = await new_group(len(situation.counts))
    await group.fill(situation.counts)
    await java_leaves(java_programs, group, situation, tmp_path)

    assert said_by(await group.maps(), group.counts) == situation.places
    assert await run_to_the_end(group) == Counter(situation.places)
    await group.committed_all_but(())


@pytest.mark.parametrize(
    ("situation", "formats"),
    [
        pytest.param(ONE_STUCK, "all", id="one-stuck"),
        pytest.param(PATTERNS, "all", id="patterns", marks=pytest.mark.slow),
        pytest.param(PATTERNS, "java", id="patterns-java-only", marks=pytest.mark.slow),
        pytest.param(LONG, "java", id="long-and-empty-java-only"),
    ],
)
async def test_java_goes_on_where_we_stopped(
    new_group: GroupMaker,
    java_programs: JavaPrograms,
    tmp_path: Path,
    situation: Situation,
    formats: Literal["all", "java"],
) -> None:
    """We leave stuck records and our commit, in a Java format as one fits; the Java library runs exactly these."""
    group = await new_group(len(situation.counts))
    await group.fill(situation.counts)
    async with OurConsumer(group, situation.places, offset_map_formats=formats) as ours:
        await group.committed_all_but(situation.places, ours.check)
    assert ours.ran == Counter(set(group.places()) - situation.places)

    assert await java_runs_the_rest(java_programs, group, tmp_path) == Counter(situation.places)


async def test_a_group_moves_to_us_and_back_with_key_lanes(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path
) -> None:
    """Java, then we, then Java again, ordered by key: a stuck record keeps what follows it in its key waiting, nothing
    runs twice, and over all three each key runs in the log's order."""
    keys = 300
    group = await new_group(3)
    await group.fill([3_000, 3_000, 1_500], key=lambda offset: offset % keys)
    first = set(_RANDOM.sample(group.places(), 40))
    behind_first = {place for place in group.places() if behind(place, first, keys)}
    second = {place for place in first if place.offset % 2}
    behind_second = {place for place in behind_first if behind(place, second, keys)}
    assert behind_second < behind_first

    async with java_consumer(java_programs, group, tmp_path, first) as java:
        await group.committed_all_but(behind_first, java.check)
        await java.close()
    assert said_by(await group.maps(), group.counts) == behind_first
    async with OurConsumer(group, second, ordering=Ordering.KEY) as ours:
        await group.committed_all_but(behind_second, ours.check)
    assert ours.ran == Counter(behind_first - behind_second)
    again = await java_runs_the_rest(java_programs, group, tmp_path)
    assert again == Counter(behind_second)

    # A counter keeps the order of first calls.
    lanes: dict[tuple[int, int], list[int]] = {}
    for place in (*java.ran, *ours.ran, *again):
        lanes.setdefault((place.partition, place.offset % keys), []).append(place.offset)
    assert len(lanes) == 3 * keys
    assert all(offsets == sorted(offsets) for offsets in lanes.values())


def behind(place: Place, stuck: set[Place], keys: int) -> bool:
    """Whether a stuck record of its key keeps it from running; a stuck one keeps itself."""
    return any(
        place.partition == one.partition and place.offset >= one.offset and (place.offset - one.offset) % keys == 0
        for one in stuck
    )
