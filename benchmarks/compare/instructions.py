"""Instructions a record, counted without Kafka: they hardly depend on what else the machine does.

``perf stat`` counts them where the machine lets it, else valgrind's cachegrind does (a second of it is about 50 of the
program). Two runs of different sizes are taken, so that what a process costs by itself is not counted. Counts of the
same code differ by up to 0.2 %; handlers that sleep are not counted, for how many wake together depends on time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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
COUNT: Final = re.compile(r"I\s+refs:\s+([\d,]+)|^([\d,]+),[^,]*,instructions:u", re.MULTILINE)
"""In the words of cachegrind, or in the lines of ``perf stat -x,``."""

Counter = Callable[[Sequence[str]], Sequence[str]]
"""The command that counts another one's instructions."""


def count(case: Case, sides: Sequence[Revision]) -> list[float] | str:
    """A record of each side; a text where nothing counts, which says why. Raises AioparallelError when a run fails."""
    if case.handler == "sleep":
        return "not counted (they depend on when sleeps end)"
    counter = find_counter()
    if counter is None:
        return "not counted (neither perf stat nor valgrind counts here)"
    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(lambda side: instructions_of(case, side, counter), sides))


def instructions_of(case: Case, side: Revision, counter: Counter) -> float:
    """Of one record."""
    few, many = (_counted(case, side, counter, size) for size in SIZES)
    return (many - few) / (SIZES[1] - SIZES[0])


@cache
def find_counter() -> Counter | None:
    """perf before valgrind; None where neither counts."""
    for found in (_perf, _cachegrind):
        if shutil.which(found(())[0]) and count_in(_run(found(("true",)), {})) is not None:
            return found
    return None


def _perf(command: Sequence[str]) -> Sequence[str]:
    return ("perf", "stat", "-x,", "-e", "instructions:u", "--", *command)


def _cachegrind(command: Sequence[str]) -> Sequence[str]:
    return ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", *command)


def _counted(case: Case, side: Revision, counter: Counter, size: int) -> int:
    command = counter((sys.executable, "-P", str(PROGRAM), json.dumps(told(case)), str(size)))
    answer = _run(command, {"PYTHONPATH": str(side.folder), "PYTHONHASHSEED": "0"})
    count = count_in(answer)
    if count is None:
        raise AioparallelError(f"instructions of {case.name} in {side.title} were not counted:\n{answer[-1_000:]}")
    return count


def told(case: Case) -> dict[str, object]:
    """What the program is told of a case."""
    return {
        "keys": case.shape.keys, "handler": case.handler, "batch": case.batch, "concurrency": case.concurrency,
        "ordering": case.ordering,
    }  # fmt: skip


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    """What it wrote to standard error; a failure is told there, too."""
    try:
        ran = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {TIMEOUT:g} s"
    # The counts of a run that failed are none.
    return COUNT.sub("", ran.stderr) if ran.returncode else ran.stderr


def count_in(said: str) -> int | None:
    """In what perf or valgrind wrote to standard error."""
    found = COUNT.search(said)
    return int((found[1] or found[2]).replace(",", "")) if found else None
