"""Our consumer restarted on real Kafka: what was complete above a stuck record does not run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from aioparallel.testing.processes import Child
from tests.interop.conftest import GroupMaker
from tests.support.children.job import Job
from tests.support.interop.group import Place
from tests.support.interop.our_consumer import How, OurConsumer, run_to_the_end

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]


@pytest.mark.parametrize("how", ["raises", "waits"])
async def test_only_the_stuck_record_runs_again(new_group: GroupMaker, how: How) -> None:
    """10,001 records, the first one stuck, stopped without a drain: exactly the stuck one runs again."""
    group = await new_group(1)
    await group.fill([10_001])
    stuck = {Place(0, 0)}

    async with OurConsumer(group, stuck, how) as first:
        await group.committed_all_but(stuck, first.check)
    assert first.ran == Counter(set(group.places()) - stuck)

    assert await run_to_the_end(group) == Counter(stuck)
    await group.committed_all_but(())


async def test_only_the_stuck_records_of_three_partitions_run_again(new_group: GroupMaker) -> None:
    """One stuck at the base, one in the middle, one at the very end: exactly these three run again."""
    group = await new_group(3)
    await group.fill([10_001, 4_000, 3_000])
    stuck = {Place(0, 0), Place(1, 1_999), Place(2, 2_999)}

    async with OurConsumer(group, stuck) as first:
        await group.committed_all_but(stuck, first.check)
    assert first.ran == Counter(set(group.places()) - stuck)

    assert await run_to_the_end(group) == Counter(stuck)
    await group.committed_all_but(())


@pytest.mark.parametrize("counts", [[10_001], [10_001, 2_000, 1]], ids=["1-partition", "3-partitions"])
async def test_only_the_stuck_records_run_again_after_sigkill(
    new_group: GroupMaker, counts: list[int], tmp_path: Path
) -> None:
    """A process killed after its commit was acknowledged: exactly the stuck records run again in the next one."""
    group = await new_group(len(counts))
    await group.fill(counts)
    stuck = {Place(partition, 0) for partition in range(len(counts))}
    options = {"commit_interval": 0.1, "session_timeout": 2.0, "heartbeat_interval": 0.5}
    job = Job(
        bootstrap_servers=group.bootstrap_servers, topic=group.topic, group_id=group.name, options=options, stuck=0
    )
    async with job.child(tmp_path) as child:
        await group.committed_all_but(stuck, lambda: check(child))
        await child.kill()

    await group.committed_all_but(stuck)
    assert await run_to_the_end(group) == Counter(stuck)


def check(child: Child) -> None:
    """Fail the test when it has ended though nobody told it to."""
    assert child.running, child.last_words()
