"""Programs that are run to their end: Maven, and what else builds or fetches something."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["run_program"]

_LAST_WORDS: Final = 12
"""Lines of what a program has said that a message repeats."""


def run_program(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Its exit code, and the last lines of what it said. Nothing can be asked of it: it has no input.

    Raises subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    ran = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return ran.returncode, "\n".join(ran.stdout.strip().splitlines()[-_LAST_WORDS:])
