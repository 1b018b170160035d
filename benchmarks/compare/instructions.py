"""Instructions a record, counted without Kafka: they hardly depend on what else the machine does.

``perf stat`` counts them where the machine lets it, else valgrind's cachegrind does (a second of it is about 50 of the
program). Two runs of different sizes are taken, so that what a process costs by itself is not counted. Counts of the
same code differ by up to 0.2 %; handlers that sleep are not counted, for how many wake together depends on time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aioparallel.errors import AioparallelError
from benchmarks.cases import Case
from benchmarks.compare.revisions import Revision

__all__ = ["PROGRAM", "count", "count_in", "told"]

PROGRAM: Final = Path(__file__).with_name("in_memory.py")
SIZES: Final = (2_000, 12_000)
"""Records of the two runs."""
TIMEOUT: Final = 300.0
COUNT: Final = re.compile(r"^==\d+== I\s+refs:\s+([\d,]+)|^([\d,]+),[^,]*,instructions:u", re.MULTILINE)
"""In the words of cachegrind, or in the lines of ``perf stat -x,``."""

Counter = Callable[[Sequence[str]], Sequence[str]]
"""The command that counts another one's instructions."""


async def count(case: Case, sides: Sequence[Revision]) -> list[float] | str:
    """A record of each side; a text where nothing counts, which says why. Raises AioparallelError when a run fails.
    Cancelled, it ends what it has started."""
    if case.handler == "sleep":
        return "not counted (they depend on when sleeps end)"
    counter = await find_counter()
    if counter is None:
        return "not counted (neither perf stat nor valgrind counts here)"
    return list(await asyncio.gather(*(instructions_of(case, side, counter) for side in sides)))


async def instructions_of(case: Case, side: Revision, counter: Counter) -> float:
    """Of one record."""
    few, many = [await _counted(case, side, counter, size) for size in SIZES]
    return (many - few) / (SIZES[1] - SIZES[0])


async def find_counter() -> Counter | None:
    """perf before valgrind; None where neither counts."""
    for found in (_perf, _cachegrind):
        if shutil.which(found(())[0]) and count_in(await _run(found(("true",)), {})) is not None:
            return found
    return None


def _perf(command: Sequence[str]) -> Sequence[str]:
    return ("perf", "stat", "-x,", "-e", "instructions:u", "--", *command)


def _cachegrind(command: Sequence[str]) -> Sequence[str]:
    return ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *command)


async def _counted(case: Case, side: Revision, counter: Counter, size: int) -> int:
    command = counter((sys.executable, "-P", str(PROGRAM), json.dumps(told(case)), str(size), str(side.folder)))
    answer = await _run(command, {"PYTHONPATH": str(side.folder), "PYTHONHASHSEED": "0"})
    found = count_in(answer)
    if found is None:
        raise AioparallelError(f"instructions of {case.name} in {side.title} were not counted:\n{answer[-1_000:]}")
    return found


def told(case: Case) -> dict[str, object]:
    """What the program is told of a case."""
    return {
        "keys": case.shape.keys, "handler": case.handler, "batch": case.batch, "concurrency": case.concurrency,
        "ordering": case.ordering,
    }  # fmt: skip


async def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    """What it wrote to standard error; without counts where it failed."""
    child = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            _, said = await child.communicate()
    except TimeoutError:
        return f"it did not end within {TIMEOUT:g} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = said.decode(errors="replace")
    return COUNT.sub("", text) if child.returncode else text


def count_in(said: str) -> int | None:
    """In what perf or valgrind wrote to standard error."""
    found = COUNT.search(said)
    return int((found[1] or found[2]).replace(",", "")) if found else None
