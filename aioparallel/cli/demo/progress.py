"""What is seen while the demo runs: a bar on a terminal, now and then a line anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["Meter", "metering"]

LINE_INTERVAL = 2.0  # seconds between two lines where there is no terminal


class Meter(Protocol):
    """Shows how far one step of the demo has come."""

    def show(self, done: int, note: str) -> None:
        """``done`` records are done; ``note`` is a short remark."""


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total, note="")

    def show(self, done: int, note: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, note=note)


class PlainLines:
    """A line when something new can be said, at most every two seconds, and one for the end."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._next = 0.0
        self._shown = -1

    def show(self, done: int, note: str) -> None:
        """Perhaps print."""
        now = time.monotonic()
        if done == self._shown or (now < self._next and done < self._total):
            return
        self._shown = done
        self._next = now + LINE_INTERVAL
        self._console.print(f"{self._title}: {done:,} of {self._total:,} records  {note}", highlight=False)


@contextmanager
def metering(console: Console, title: str, total: int) -> Iterator[Meter]:
    """A meter for one step of ``total`` records."""
    if not console.is_terminal:
        yield PlainLines(console, title, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<26}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, title, total)
