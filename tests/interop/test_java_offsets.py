"""``aioparallel offsets`` changes a commit of the Java library, and the Java library goes on with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.conftest import GroupMaker
from tests.interop.test_java_takeover import PATTERNS, java_leaves, java_runs_the_rest
from tests.support.command_line import invoke
from tests.support.interop.group import Place, said_by
from tests.support.interop.java_programs import JavaPrograms

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]


async def test_java_runs_what_is_left_after_skips_and_redos(
    new_group: GroupMaker, java_programs: JavaPrograms, tmp_path: Path
) -> None:
    """Of each pattern one stuck record is skipped, and one complete record is to run again."""
    group = await new_group(len(PATTERNS.counts))
    await group.fill(PATTERNS.counts)
    await java_leaves(java_programs, group, PATTERNS, tmp_path)
    expected = set(PATTERNS.places)
    skipped = {Place(0, min(PATTERNS.stuck[0])), Place(1, 1_001), Place(2, 1_500)}
    again = {Place(0, min(set(range(5_000)) - PATTERNS.stuck[0])), Place(1, 1_000), Place(2, 4_998)}
    for command, places in (("skip", skipped), ("redo", again)):
        texts = [f"{group.topic}:{partition}:{offset}" for partition, offset in sorted(places)]
        ran = await asyncio.to_thread(
            invoke,
            "offsets",
            command,
            group.name,
            *texts,
            "--execute",
            environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": group.bootstrap_servers},
        )
        assert ran.exit_code == 0, ran.output
    expected = expected - skipped | again
    assert said_by(await group.maps(), group.counts) == expected
    assert await java_runs_the_rest(java_programs, group, tmp_path) == Counter(expected)
