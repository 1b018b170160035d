"""Instructions per record, counted without Kafka: they hardly depend on other work of the machine.

``perf stat`` counts them if the machine allows it, else valgrind's cachegrind (50 times slower than the program). Two
runs of different sizes are compared, so start-up does not count. Counts of the same code differ by up to 0.2 %.
Handlers that sleep are not counted, as the number that wakes together depends on time.
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

from aioparallel.records.errors import AioparallelError
from benchmarks.cases import Case
from benchmarks.compare.revisions import Revision
from benchmarks.contestants.observing import OBSERVED, Observed
from benchmarks.programs import ROOT

__all__ = ["PROGRAM", "count", "count_in", "told"]

PROGRAM: Final = Path(__file__).with_name("in_memory.py")
SIZES: Final = (2_000, 12_000)
"""Records in the two runs."""
TIMEOUT: Final = 300.0
COUNT: Final = re.compile(r"^==\d+== I\s+refs:\s+([\d,]+)|^([\d,]+),[^,]*,instructions:u", re.MULTILINE)
"""The count in the output of cachegrind, or of ``perf stat -x,``."""

Counter = Callable[[Sequence[str]], Sequence[str]]
"""Makes a command that counts the instructions of a command."""


async def count(case: Case, sides: Sequence[Revision]) -> list[float] | str:
    """Instructions per record of each side; or a text that says why they were not counted. Raises AioparallelError if a
    run fails. Cancelling it ends its processes."""
    if case.handler == "sleep":
        return "not counted (they depend on when sleeps end)"
    counter = await find_counter()
    if counter is None:
        return "not counted (neither perf stat nor valgrind counts here)"
    observed: tuple[Observed, Observed] = ("", case.observed)
    return list(
        await asyncio.gather(*(instructions_of(case, *one, counter) for one in zip(sides, observed, strict=True)))
    )


async def instructions_of(case: Case, side: Revision, observed: Observed, counter: Counter) -> float:
    """Instructions per record."""
    few, many = [await _counted(case, side, observed, counter, size) for size in SIZES]
    return (many - few) / (SIZES[1] - SIZES[0])


async def find_counter() -> Counter | None:
    """perf if it works, else valgrind, else None."""
    for found in (_perf, _cachegrind):
        if shutil.which(found(())[0]) and count_in(await _run(found(("true",)), {})) is not None:
            return found
    return None


def _perf(command: Sequence[str]) -> Sequence[str]:
    return ("perf", "stat", "-x,", "-e", "instructions:u", "--", *command)


def _cachegrind(command: Sequence[str]) -> Sequence[str]:
    return ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *command)


async def _counted(case: Case, side: Revision, observed: Observed, counter: Counter, size: int) -> int:
    command = counter((sys.executable, "-P", str(PROGRAM), json.dumps(told(case)), str(size), str(side.folder)))
    answer = await _run(command, {"PYTHONPATH": f"{side.folder}:{ROOT}", "PYTHONHASHSEED": "0", OBSERVED: observed})
    found = count_in(answer)
    if found is None:
        raise AioparallelError(f"instructions of {case.name} in {side.title} were not counted:\n{answer[-1_000:]}")
    return found


def told(case: Case) -> dict[str, object]:
    """A case as JSON for the program."""
    return {
        "keys": case.shape.keys, "handler": case.handler, "batch": case.batch, "concurrency": case.concurrency,
        "ordering": case.ordering, "traced": case.observed == "traces",
    }  # fmt: skip


async def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    """The program's standard error; without counts if it failed."""
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
    """The count in the standard error of perf or valgrind."""
    found = COUNT.search(said)
    return int((found[1] or found[2]).replace(",", "")) if found else None
