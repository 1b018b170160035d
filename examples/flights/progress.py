"""A progress bar for each step on a terminal; elsewhere a line at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["Show", "progress"]

Show = Callable[[int, str], None]
"""Called with the number of completed records, and a short note."""


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Show]:
    """Show the progress of a step of ``total`` records."""
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} records"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(title, total=total, note="")
        yield lambda done, note: bars.update(bar, completed=done, note=note)
