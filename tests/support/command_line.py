"""The command line, run inside this process as a shell would run it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from aioparallel.cli.app import run


class Ran(NamedTuple):
    """How it ended, and what it said to whom."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that it said."""
        return self.stdout + self.stderr


def invoke(*arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
    """Run ``aioparallel`` with these arguments, without a terminal. A defect raises."""
    said, complained = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, environment or {}),
        patch.object(sys, "stdin", io.StringIO()),
        redirect_stdout(said),
        redirect_stderr(complained),
    ):
        code = run(arguments)
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (said, complained)))
