"""What the Java library does with maps that it cannot read, and with maps that did not fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from aioparallel.offsets import encode_offset_map
from aioparallel.offsets.dense.dense_map import is_dense
from tests.interop.conftest import GroupMaker
from tests.support.interop.group import Group, Place, said_by
from tests.support.interop.java_consumer import java_consumer
from tests.support.interop.java_programs import JavaPrograms
from tests.support.interop.our_consumer import OurConsumer, run_to_the_end

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]

COUNT = 30_000
HALF = {Place(0, offset) for offset in Random(30).sample(range(COUNT), COUNT // 2)}
"""At random, every second one: more than any Java format holds in 4096 characters, and less than Dense does."""


async def test_java_goes_on_without_a_dense_map(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path
) -> None:
    """It logs the Dense map as undecodable and runs everything above that partition's base; it does not end, and the
    Java map of another partition counts."""
    group = await new_group(3)
    await group.fill([1_000, 1_000, 1_000])
    left = (100, 300, 998)
    await group.commit(0, 100, encode_offset_map(100, 999, left, format="Dense"))
    await group.commit(1, 100, encode_offset_map(100, 999, left, formats="java"))
    await group.commit(2, 100, "")

    async with java_consumer(java_programs, group, tmp_path) as java:
        await group.committed_all_but((), java.check)
        complaints = java.complaints
        await java.close()

    above = [Place(partition, offset) for partition in (0, 2) for offset in range(100, 1_000)]
    assert java.ran == Counter([*above, *(Place(1, offset) for offset in left)])
    assert "OffsetDecodingError" in complaints, complaints


async def leave_half(group: Group, formats: Literal["all", "java"]) -> int:
    """Our consumer leaves every second record stuck and its last commit; how many of its maps were cut."""
    async with OurConsumer(group, HALF, offset_map_formats=formats) as ours:
        await group.until(lambda: ours.ran.total() + ours.stuck.total() == COUNT, "every record has run", ours.check)
        await ours.consumer.commit_now()
        return ours.consumer.stats().cut_maps


@pytest.mark.slow
async def test_java_reads_a_map_that_was_cut(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path
) -> None:
    """With Java formats only, the map ends where 4096 characters do: Java runs the incompletes below that, and above
    it everything."""
    group = await new_group(1)
    await group.fill([COUNT])
    assert await leave_half(group, "java") > 0
    committed = (await group.committed())[0]
    highest = (await group.maps())[0].highest_succeeded
    left = said_by(await group.maps(), group.counts)
    assert 4_000 < len(committed.metadata) <= 4_096
    assert 20_000 < highest < COUNT - 1
    assert left == {place for place in group.places() if place in HALF or place.offset > highest}

    async with java_consumer(java_programs, group, tmp_path) as java:
        await group.committed_all_but((), java.check)
        await java.close()
    assert java.ran == Counter(left)


async def test_dense_holds_what_no_java_format_does(new_group: GroupMaker) -> None:
    """The same records with all formats: the map is Dense, and exactly the stuck ones run again with us."""
    group = await new_group(1)
    await group.fill([COUNT])
    assert await leave_half(group, "all") == 0
    assert is_dense((await group.committed())[0].metadata)
    assert await run_to_the_end(group) == Counter(HALF)


@pytest.mark.slow
async def test_what_java_commits_when_its_map_does_not_fit(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path
) -> None:
    """It stops in the middle, with a map or without one: we run what that commit leaves, each record once."""
    group = await new_group(1)
    await group.fill([COUNT])
    async with java_consumer(java_programs, group, tmp_path, HALF, "UNORDERED") as java:
        await group.until(lambda: java.ran.total() > COUNT // 4, "a quarter has run", java.check)
        await java.close()
    left = said_by(await group.maps(), group.counts)
    assert {place for place in group.places() if place not in java.ran} <= left
    assert await run_to_the_end(group) == Counter(left)
