"""``aioparallel kmq status``: its table, its JSON, and how often it repeats."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from rich.console import Console

from aioparallel.cli.kmq import status
from aioparallel.cli.kmq.commands import Reporting
from aioparallel.cli.kmq.status import PartitionStatus

FIRST = PartitionStatus(0, open=2, oldest=5.4, overdue=1, redelivered=1, most=3, behind=None)
SECOND = PartitionStatus(1, open=1_000, oldest=None, overdue=0, redelivered=0, most=0, behind=7)


class Status:
    """Answers with the same partitions each time."""

    def __init__(self, *partitions: PartitionStatus) -> None:
        self.updates = 0
        self._partitions = list(partitions)

    async def update(self) -> list[PartitionStatus]:
        self.updates += 1
        return self._partitions


def rows(*partitions: PartitionStatus) -> list[list[str]]:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(status.table("jobs", partitions))
    return [line.split() for line in capture.get().splitlines()[2:]]


def test_a_row_for_each_partition_and_one_for_all() -> None:
    """What is unknown in one partition does not hide what is known of the others."""
    assert rows(FIRST) == [["0", "2", "5", "s", "1", "1", "3", "-"]]
    assert rows(FIRST, SECOND) == [
        ["0", "2", "5", "s", "1", "1", "3", "-"],
        ["1", "1,000", "-", "0", "0", "0", "7"],
        ["all", "1,002", "5", "s", "1", "1", "3", "7"],
    ]
    assert rows(FIRST, FIRST)[-1][-1] == "-"


async def test_it_ends_after_one_update(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, and as one JSON object a line."""
    found = Status(FIRST, SECOND)
    await status._show(cast("Any", found), "jobs", Reporting())
    assert found.updates == 1
    assert "records under way" in capsys.readouterr().out
    await status._show(cast("Any", found), "jobs", Reporting(as_json=True))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [FIRST._asdict(), SECOND._asdict()]


@pytest.mark.parametrize("as_json", [False, True])
async def test_it_repeats_until_it_is_cancelled(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``--watch``, at the interval of ``--every``."""
    found = Status(FIRST)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await status._show(cast("Any", found), "jobs", Reporting(watch=True, every=0.01, as_json=as_json))
    assert found.updates > 2
    out = capsys.readouterr().out
    assert out.count('"open": 2') == found.updates if as_json else "records under way" in out
