"""A file of lines that is still whole after a SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["Lines", "appending"]


class Lines:
    """Appends to a file, one system call for each line: what was written outlives this process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()

    def write(self, line: bytes) -> None:
        """One line, given without its end."""
        os.write(self._file, line + b"\n")


@contextmanager
def appending(path: Path) -> Iterator[Lines]:
    """Open the file, and cut off what a SIGKILL left of a line."""
    with path.open("ab+", buffering=0) as file:
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        yield Lines(file)
