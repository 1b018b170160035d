"""Tasks that Spark ends early, twenty times each way: calls that begin after the end. ``make load-spark-ends``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aioparallel.testing.processes.child import Child
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
RUNS = 20
MOST = 1.0
"""Seconds after the end in which a call may begin, on a machine with other load."""


@pytest.mark.parametrize("how", ["stop", "limit", "cancel", "retry", "speculation"])
async def test_calls_after_the_end(how: str, tmp_path: Path) -> None:
    """Of twenty runs, after 100 to 3,000 calls each."""
    command = [sys.executable, "-m", "tests.load.spark_ends", how, str(RUNS), str(tmp_path)]
    log = tmp_path / "driver.log"
    async with Child("driver", command, log=log) as driver:
        await until(lambda: not driver.running, 600, what=lambda: log.read_text()[-2_000:])
        assert driver.exit_code == 0, driver.last_words()
    runs = [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]
    assert len(runs) == RUNS
    late = [run["late"] for run in runs]
    last = sorted(max(times, default=0.0) for times in late)
    print(
        f"\n{how}: calls begun after the end: {sum(map(len, late))} in {RUNS} runs, {max(map(len, late))} at most; "
        f"the last of a run after {last[RUNS // 2]:.2f} s (median), {last[-1]:.2f} s (at most)"
    )
    assert last[-1] < MOST
