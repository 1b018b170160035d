"""Handlers that the sink finds by name, in the processes of Spark."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from aioparallel import Batch, batches
from aioparallel.handlers.resources import resource
from aioparallel.spark import SinkRow

__all__ = ["RESOURCES", "fail_at_seven", "fail_without_utf8", "note", "note_all", "place"]


@contextlib.asynccontextmanager
async def place() -> AsyncIterator[str]:
    """Names the process, as a client would that it shares."""
    yield f"client of {os.getpid()}"


RESOURCES = {"place": place}


async def note(row: SinkRow) -> None:
    """Write a line to the file that the row names: itself, its idempotency key, and what is shared."""
    await asyncio.sleep(0.001)
    with Path(row["file"]).open("a") as file:  # noqa: ASYNC230 - one line, and nothing else waits
        file.write(f"{row['seq']}|{row['k']}|{row.idempotency_key}|{resource('place', str)}\n")


@batches(size=20)
async def note_all(batch: Batch[SinkRow]) -> None:
    """:func:`note` for many rows; seven fails two times, and what is behind it with its key goes back."""
    out: set[str] = set()
    for row in batch:
        if row["seq"] == 7 and _fails_again():
            batch.fail(row, ValueError("seven"))
            out.add(row["k"])
        elif row["k"] not in out:
            await note(row)


_failed: list[int] = []


def _fails_again() -> bool:
    _failed.append(7)
    return len(_failed) <= 2


async def fail_at_seven(row: SinkRow) -> None:
    """As it says."""
    if row["seq"] == 7:
        raise ValueError("seven")


async def fail_without_utf8(row: SinkRow) -> None:
    """With a text that the JVM does not get as it is."""
    raise OSError("no such file: \udcff" + "x" * 3_000_000)
