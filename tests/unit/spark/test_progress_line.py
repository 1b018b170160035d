"""Progress, drawn: lines where there is no terminal, a table that disturbs nothing where there is one."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from aioparallel.spark.progress import ProgressListener, QueryProgress
from aioparallel.spark.progress_line import ProgressDisplay, line, table
from tests.support.spark import progress_events as events


def figure_of(*sent: dict[str, object], **changes: object) -> QueryProgress:
    listener = ProgressListener(show="nothing")
    for event in sent:
        listener.onQueryProgress(events.progress(event))
    return replace(listener.snapshot()[0], **changes)  # type: ignore[arg-type]


def drawn(*figures: QueryProgress, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table(figures, datetime.now(UTC)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_says_it_all() -> None:
    """Name, state, batch, rows, rate, time and its median, lag with the largest partition, totals."""
    assert line(figure_of(events.FIRST, events.SECOND)) == (
        "flights: running, batch 1: 400 rows, 826 rows/s, 0.48 s (p50 2.48 s), lag 200 (most in raw-0: 88), "
        "800 rows in 2 batches"
    )


def test_lines_of_queries_without_kafka_or_batches() -> None:
    """What is not known is a dash, no zero."""
    assert line(figure_of(events.RATE)) == (
        "rate: running, batch 1: 1 rows, 3.7 rows/s, 0.27 s (p50 0.27 s), lag -, 1 rows in 1 batch"
    )
    fresh = QueryProgress(figure_of(events.RATE).run_id, figure_of(events.RATE).query_id)
    assert line(fresh) == "query 0c4dcaed: running, no batch yet"


def test_lines_of_ends() -> None:
    """A query that failed says why; one that was stopped says that it ended."""
    assert line(figure_of(events.FIRST, state="terminated")) == "flights: ended, 400 rows in 1 batch"
    failed = figure_of(events.FIRST, state="terminated", error="ValueError: boom")
    assert line(failed) == "flights: failed, 400 rows in 1 batch: ValueError: boom"


def test_the_table_needs_no_colour() -> None:
    """The state is a word, with the seconds since Spark last said something; an error stands below."""
    long_ago = datetime.now(UTC) - timedelta(seconds=42)
    text = drawn(
        figure_of(events.FIRST, events.SECOND, heard_at=long_ago),
        figure_of(events.RATE, state="idle"),
        figure_of(events.UNNAMED, state="terminated", error="ValueError: [boom]"),
    )
    rows = [re.split(r"\s{2,}", row.strip()) for row in text.splitlines()]
    assert rows[0] == ["query", "state", "batch", "rows/s", "batch time", "p50", "lag", "rows", "most behind"]
    assert rows[1] == ["flights", "running 42 s", "1", "826", "0.48 s", "2.48 s", "200", "800", "raw-0: 88"]
    assert rows[2] == ["rate", "idle 0 s", "1", "3.7", "0.27 s", "0.27 s", "-", "1"]
    assert rows[3][:2] == ["query 477c2fee", "failed"]
    assert rows[4] == ["query 477c2fee failed: ValueError: [boom]"]


def test_names_are_no_markup() -> None:
    """A query may be called [red]."""
    assert "[red]x" in drawn(figure_of({**events.FIRST, "name": "[red]x"}))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_now_and_then() -> None:
    """The start, the first batch and the end at once; in between one line in ``every`` seconds for each query."""
    said, clock = io.StringIO(), Clock()
    display = ProgressDisplay("auto", 10.0, Console(file=said), tuple, clock)
    first, second = figure_of(events.FIRST), figure_of(events.FIRST, events.SECOND)

    def lines_after(figure: QueryProgress) -> int:
        display.changed(figure)
        return len(said.getvalue().splitlines())

    assert lines_after(replace(first, batches=0, batch_id=None)) == 1
    assert lines_after(first) == 2
    assert lines_after(second) == 2
    clock.now += 9.9
    assert lines_after(second) == 2
    assert lines_after(figure_of(events.RATE)) == 3
    clock.now += 0.2
    assert lines_after(second) == 4
    assert lines_after(replace(second, state="terminated")) == 5


def test_a_query_that_rests_after_its_first_batch_is_told_now_and_then() -> None:
    """Spark says every 10 s that there was nothing new; the first batch is told at once, and once."""
    said, clock = io.StringIO(), Clock()
    display = ProgressDisplay("lines", 60.0, Console(file=said), tuple, clock)
    first = figure_of(events.FIRST)
    display.changed(first)
    for _ in range(5):
        clock.now += 10
        display.changed(replace(first, state="idle"))
    assert len(said.getvalue().splitlines()) == 1
    clock.now += 10
    display.changed(replace(first, state="idle"))
    assert len(said.getvalue().splitlines()) == 2


def test_lines_in_the_log_carry_the_figures(caplog: pytest.LogCaptureFixture) -> None:
    """``show="log"``: INFO, with fields; nothing is written elsewhere."""
    said = io.StringIO()
    with caplog.at_level(logging.INFO, "aioparallel.spark"):
        listener = ProgressListener(show="log", console=Console(file=said))
        listener.onQueryProgress(events.progress(events.FIRST))
    (record,) = caplog.records
    assert vars(record)["lag"] == 600
    assert vars(record)["query"] == "flights"
    assert said.getvalue() == ""


def test_quiet_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """``show="nothing"`` writes nothing at all."""
    listener = ProgressListener(show="nothing")
    listener.onQueryProgress(events.progress(events.FIRST))
    listener.close()
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """stdout and stderr are one terminal meanwhile, and must be left as they were."""
    shown = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        patch.setattr(sys, "stdout", shown)
        patch.setattr(sys, "stderr", shown)
        yield shown
        assert sys.stdout is sys.stderr is shown


def plain(shown: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())


def test_a_terminal_is_left_as_it_was() -> None:
    """The cursor is hidden while a query runs, and back when it has ended; the last table stays."""
    with terminal() as shown:
        listener = ProgressListener(console=Console(stderr=True, width=120))
        listener.onQueryStarted(events.started(events.FIRST))
        assert shown.getvalue().count("\x1b[?25l") == 1
        listener.onQueryProgress(events.progress(events.FIRST))
        assert "\x1b[?25h" not in shown.getvalue()
        listener.onQueryTerminated(events.terminated(events.FIRST))
    assert shown.getvalue().endswith("\x1b[?25h")
    assert re.search(r"flights +ended +0 +89 ", plain(shown))


def test_printing_and_logging_goes_above_the_table() -> None:
    """Whole lines, also by a handler that was there before; afterwards each has its stream again."""
    with terminal() as shown:
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(handler)
        try:
            with ProgressListener(console=Console(stderr=True, width=120)) as listener:
                listener.onQueryProgress(events.progress(events.FIRST))
                print("a line of the program")
                logging.getLogger("other").warning("a line of a library")
                listener.onQueryTerminated(events.terminated(events.FIRST))
            assert handler.stream is shown
        finally:
            logging.getLogger().removeHandler(handler)
    lines = plain(shown).splitlines()
    assert "a line of the program" in lines
    assert "a line of a library" in lines


def test_a_table_shows_no_query_of_an_earlier_one() -> None:
    """One query after the other in one session: each table stays on the screen with its own."""
    with terminal() as shown:
        listener = ProgressListener(console=Console(stderr=True, width=120))
        listener.onQueryProgress(events.progress(events.FIRST))
        listener.onQueryTerminated(events.terminated(events.FIRST))
        before = len(shown.getvalue())
        listener.onQueryProgress(events.progress(events.RATE))
        listener.onQueryTerminated(events.terminated(events.RATE))
    later = shown.getvalue()[before:]
    assert "rate" in later
    assert "flights" not in later


def test_output_that_is_piped_stays_in_its_pipe() -> None:
    """``script > file`` on a terminal: what the script prints is in the file, the table on the screen."""
    pipe = io.StringIO()
    with terminal() as shown, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        with ProgressListener(console=Console(stderr=True, width=120)) as listener:
            listener.onQueryProgress(events.progress(events.FIRST))
            print("a result")
        patch.undo()
    assert pipe.getvalue() == "a result\n"
    assert "flights" in plain(shown)


def test_an_open_block_ends_the_drawing() -> None:
    """A query that still runs when the block ends: the table is finished, the cursor is back."""
    with terminal() as shown:
        with ProgressListener(console=Console(stderr=True, width=120)) as listener:
            listener.onQueryProgress(events.progress(events.FIRST))
        ended = shown.getvalue()
        listener.onQueryProgress(events.progress(events.SECOND))
    assert ended.endswith("\x1b[?25h")
    assert shown.getvalue() == ended
