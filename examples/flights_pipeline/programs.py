"""Spark's programs as processes that cannot be left behind, whatever ends this one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aioparallel.errors import AioparallelError
from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.testing.processes.guarded import GuardedProcess

__all__ = ["QUICK_START", "run_program"]

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Of Java, for programs that live a minute: it starts in half the time."""

_LOOKS: Final = 0.2
"""Seconds between two looks at a program and its log."""
_STALLED: Final = 300.0
"""Seconds without a word after which it is taken for hung."""


async def run_program(title: str, command: Sequence[str], log: Path, hear: Callable[[str], None]) -> None:
    """Run a program of Spark to its end; ``hear`` is told each line that it writes, and ``log`` has them all.

    Its working directory is a temporary one, for what Spark and Derby leave there, and for their temporary files: ended
    by Ctrl-C, Spark removes none of them. Raises AioparallelError when it
    fails or hangs, with its last words, and JavaNotFound.
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
        # Declared pipelines run on a local server of Spark Connect. All of them take port 15002, so that a second one
        # on the same machine fails, unless this makes it a free one.
        "SPARK_TESTING=1",
    ]


async def _until_ended(title: str, guarded: GuardedProcess, log: Path, hear: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    with log.open(errors="replace") as lines:
        unfinished = ""
        while True:
            code = guarded.exit_code()  # before the last look at the log
            if new := lines.read():
                heard_at = loop.time()
                *whole, unfinished = (unfinished + new).split("\n")
                for line in whole:
                    hear(line)
            if code is not None:
                break
            if loop.time() - heard_at > _STALLED:
                raise AioparallelError(f"{title} has said nothing for {_STALLED:g} s; see {log}")
            await asyncio.sleep(_LOOKS)
    if code:
        raise AioparallelError(f"{title} failed (exit code {code}), and said last:\n{_last_words(log)}\nAll: {log}")


def _last_words(log: Path, count: int = 12) -> str:
    """Without Java's stack traces."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t..."))][-count:])
