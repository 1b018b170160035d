"""A file of lines that stays valid after a SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["Lines", "appending"]


class Lines:
    """Appends to a file with one system call for each line, so written lines survive a kill of this process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()

    def write(self, line: bytes) -> None:
        """Write a line, given without its end."""
        os.write(self._file, line + b"\n")


@contextmanager
def appending(path: Path) -> Iterator[Lines]:
    """Open the file, and remove an incomplete last line that a SIGKILL has left."""
    with path.open("ab+", buffering=0) as file:
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        yield Lines(file)
