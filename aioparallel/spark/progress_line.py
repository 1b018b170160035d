"""Shows progress of streaming queries: as a table that is updated in place, or as lines."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aioparallel.spark.query_progress import QueryProgress

__all__ = ["ProgressDisplay", "Show", "line", "table"]

logger = logging.getLogger(__name__)

Show = Literal["auto", "live", "lines", "log", "nothing"]

_REFRESHES_PER_SECOND: Final = 1.0
_STYLES: Final = {"running": "green", "idle": "dim", "ended": "", "failed": "bold red"}
_NOT_KNOWN: Final = "-"


class ProgressDisplay:
    """Shows the values of ``queries`` when :meth:`changed` is called, from any thread.

    ``every``: seconds between two lines about the same query. Its start, its first batch and its end are reported at
    once.
    """

    def __init__(
        self,
        show: Show,
        every: float,
        console: Console,
        queries: Callable[[], Sequence[QueryProgress]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if show == "auto":
            show = "live" if console.is_terminal and not console.is_dumb_terminal else "lines"
        self._show = show
        self._every = every
        self._console = console
        self._queries = queries
        self._clock = clock
        self._lock = threading.Lock()
        self._drawing: contextlib.ExitStack | None = None
        self._ended: set[UUID] = set()  # shown in a table that was finished
        self._written: dict[UUID, float] = {}
        self._is_closed = False

    def changed(self, query: QueryProgress) -> None:
        """The values of this query have changed."""
        with self._lock:
            if self._is_closed or self._show == "nothing":
                return
            if self._show == "live":
                self._draw(query)
            else:
                self._write(query)

    def close(self) -> None:
        """Leave the last table on the screen, and restore the terminal."""
        with self._lock:
            self._is_closed = True
            self._finish()

    def _draw(self, query: QueryProgress) -> None:
        if self._drawing is None and query.state != "terminated":
            self._drawing = contextlib.ExitStack()
            self._drawing.enter_context(_live(self._console, self._table))
        if all(one.state == "terminated" for one in self._queries()):
            self._finish()

    def _table(self) -> RenderableType:
        return table([one for one in self._queries() if one.run_id not in self._ended], datetime.now(UTC))

    def _finish(self) -> None:
        if self._drawing is not None:
            self._drawing.close()
            self._drawing = None
            self._ended = {one.run_id for one in self._queries() if one.state == "terminated"}

    def _write(self, query: QueryProgress) -> None:
        now = self._clock()
        is_end = query.state == "terminated"
        is_first = query.batches == 1 and query.state == "running"  # the next batch may be far off
        if not is_end and not is_first and now - self._written.get(query.run_id, float("-inf")) < self._every:
            return
        if is_end:
            self._written.pop(query.run_id, None)
        else:
            self._written[query.run_id] = now
        if self._show == "log":
            logger.info("%s", line(query), extra={"action": "query_progress", **_fields(query)})
        else:
            self._console.print(Text(line(query)), soft_wrap=True)


def line(query: QueryProgress) -> str:
    """One line of plain text about a query."""
    state = _state(query)
    so_far = f"{query.total_rows:,} rows in {query.batches:,} {'batch' if query.batches == 1 else 'batches'}"
    if query.state == "terminated":
        return f"{query.label}: {state}, {so_far}" + (f": {query.error}" if query.error else "")
    if query.batch_id is None:
        return f"{query.label}: {state}, no batch yet"
    largest = query.largest_lag
    lag = f"lag {_count(query.lag)}" + (f" (most in {largest[0]}: {largest[1]:,})" if largest and largest[1] else "")
    return (
        f"{query.label}: {state}, batch {query.batch_id}: {_count(query.rows)} rows, "
        f"{_count(query.rows_per_second)} rows/s, {_seconds(query.batch_seconds)} "
        f"(p50 {_seconds(query.median_batch_seconds)}), {lag}, {so_far}"
    )


def table(queries: Iterable[QueryProgress], now: datetime) -> RenderableType:
    """A row for each query; below, the errors of failed ones. ``now``: for the age of each query's last event."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    drawn.add_column("query", no_wrap=True)
    drawn.add_column("state", no_wrap=True)
    for title in ("batch", "rows/s", "batch time", "p50", "lag", "rows"):
        drawn.add_column(title, justify="right", no_wrap=True)
    drawn.add_column("most behind", no_wrap=True)
    errors = []
    for one in queries:
        state, largest = _state(one), one.largest_lag
        drawn.add_row(
            Text(one.label),
            Text(f"{state}{_ago(one, now)}", style=_STYLES[state]),
            _NOT_KNOWN if one.batch_id is None else str(one.batch_id),
            _count(one.rows_per_second),
            _seconds(one.batch_seconds),
            _seconds(one.median_batch_seconds),
            _count(one.lag),
            _count(one.total_rows),
            Text(f"{largest[0]}: {largest[1]:,}" if largest and largest[1] else ""),
        )
        if one.error:
            errors.append(Text(f"{one.label} failed: {one.error}", style=_STYLES["failed"]))
    return Group(drawn, *errors)


def _fields(query: QueryProgress) -> dict[str, object]:
    return {
        "query": query.label,
        "query_id": str(query.query_id),
        "run_id": str(query.run_id),
        "state": query.state,
        "batch_id": query.batch_id,
        "rows": query.rows,
        "rows_per_second": query.rows_per_second,
        "batch_seconds": query.batch_seconds,
        "lag": query.lag,
        "total_rows": query.total_rows,
    }


def _state(query: QueryProgress) -> str:
    if query.state == "terminated":
        return "failed" if query.error else "ended"
    return query.state


def _ago(query: QueryProgress, now: datetime) -> str:
    """The age of the last event, by which a stuck query differs from a working one."""
    if query.state == "terminated" or query.heard_at is None:
        return ""
    return f" {max(0, round((now - query.heard_at).total_seconds()))} s"


def _count(number: float | None) -> str:
    if number is None:
        return _NOT_KNOWN
    return f"{number:,.1f}" if 0 < number < 10 and not isinstance(number, int) else f"{number:,.0f}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _NOT_KNOWN
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.1f} s"


@contextlib.contextmanager
def _live(console: Console, draw: Callable[[], RenderableType]) -> Iterator[None]:
    """A table at the bottom of the terminal; output and logs of the process go above it."""
    is_both = sys.stdout.isatty()  # a redirected stdout is left alone
    names = {id(getattr(sys, name)): name for name in (["stderr", "stdout"] if is_both else ["stderr"])}
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            Live(
                console=console,
                get_renderable=draw,
                refresh_per_second=_REFRESHES_PER_SECOND,
                redirect_stdout=is_both,
                redirect_stderr=True,
            )
        )
        for handler in logging.getLogger().handlers:  # they keep the streams that they were made with
            if isinstance(handler, logging.StreamHandler) and (name := names.get(id(handler.stream))) is not None:
                before = handler.setStream(getattr(sys, name))
                if before is not None:
                    stack.callback(handler.setStream, before)
        yield
