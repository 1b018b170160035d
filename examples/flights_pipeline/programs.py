"""Spark's programs as processes that end with this one, however it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aioparallel import AioparallelError
from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.testing.processes.guarded import GuardedProcess

__all__ = ["QUICK_START", "run_program"]

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For Java programs that run for a minute: they start in half the time."""

_LOOKS: Final = 0.2
"""Seconds between two checks of a program and its log."""
_STALLED: Final = 300.0
"""Seconds without output after which it counts as hung."""


async def run_program(title: str, command: Sequence[str], log: Path, hear: Callable[[str], None]) -> None:
    """Run a Spark program to its end. ``hear`` is called with each line that it writes; ``log`` has them all.

    Its working directory is temporary, for files that Spark and Derby leave there, and so is its TMPDIR: after Ctrl-C
    Spark removes no temporary files. Raises AioparallelError with its last lines if it fails or hangs; JavaNotFound.
    """
    guarded = GuardedProcess("spark")
    try:
        guarded.run(["env", *_environment(guarded.directory), *command], log)
        await _until_ended(title, guarded, log, hear)
    finally:
        guarded.close()  # with all that it has started


def _environment(scratch: Path) -> list[str]:
    root = Path(__file__).parents[2]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return [
        f"JAVA_HOME={find_java(SPARK_MODULES).home}",
        f"PYSPARK_PYTHON={sys.executable}",
        f"PYSPARK_DRIVER_PYTHON={sys.executable}",
        f"PYTHONPATH={os.pathsep.join(paths)}",
        "PYTHONUNBUFFERED=1",
        f"TMPDIR={scratch}",
        f"SPARK_LOCAL_DIRS={scratch}",
        f"JAVA_TOOL_OPTIONS=-Djava.io.tmpdir={scratch}",
        "SPARK_LOCAL_IP=127.0.0.1",
        # Declared pipelines run on a local Spark Connect server on port 15002, so a second one on the machine would
        # fail. This setting makes it use a free port.
        "SPARK_TESTING=1",
    ]


async def _until_ended(title: str, guarded: GuardedProcess, log: Path, hear: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    with log.open(errors="replace") as lines:
        unfinished = ""
        while True:
            code = guarded.exit_code()  # before reading the last lines
            if new := lines.read():
                heard_at = loop.time()
                *whole, unfinished = (unfinished + new).split("\n")
                for line in whole:
                    hear(line)
            if code is not None:
                break
            if loop.time() - heard_at > _STALLED:
                raise AioparallelError(f"{title} has written nothing for {_STALLED:g} s; see {log}")
            await asyncio.sleep(_LOOKS)
    if code:
        raise AioparallelError(f"{title} failed (exit code {code}). Its last lines:\n{_last_words(log)}\nAll: {log}")


def _last_words(log: Path, count: int = 12) -> str:
    """The last lines without Java's stack traces."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t..."))][-count:])
