"""Runs programs to their end, such as Maven."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["run_program"]

_LAST_LINES: Final = 12
"""Lines of a program's output to repeat in messages."""


def run_program(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Run a program without input. Returns its exit code and the last lines of its output.

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
    return ran.returncode, "\n".join(ran.stdout.strip().splitlines()[-_LAST_LINES:])
