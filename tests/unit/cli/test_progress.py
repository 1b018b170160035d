from __future__ import annotations

from io import StringIO

from rich.console import Console

from aioparallel.cli.demo.progress import metering


def test_without_a_terminal_lines_are_few() -> None:
    """Where there is no terminal a fast step prints its first and its last state, whole lines, no control codes."""
    output = StringIO()
    with metering(Console(file=output, width=120), "aioparallel", 1_000) as meter:
        for done in range(1_001):
            meter.show(done, "7 in flight")
    lines = output.getvalue().splitlines()
    assert lines[-1] == "aioparallel: 1,000 of 1,000 records  7 in flight"
    assert len(lines) == 2
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_there_is_a_bar() -> None:
    """On a terminal the title, the counts and the note are shown beside a bar."""
    output = StringIO()
    console = Console(file=output, width=120, force_terminal=True)
    with metering(console, "aioparallel", 1_000) as meter:
        meter.show(250, "7 in flight")
    text = output.getvalue()
    assert "250/1000" in text
    assert "7 in flight" in text
    assert "\x1b[" in text
