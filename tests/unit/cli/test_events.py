from __future__ import annotations

from pathlib import Path

from aioparallel.cli.demo.events import LAYOUT, Event, EventLog, Kind, Lines, Place, Tail, read_events


def test_events_come_back_as_written(tmp_path: Path) -> None:
    """Kind, run, place and attempt come back, in order, with ascending times; reopening appends."""
    path = tmp_path / "events"
    with EventLog(path) as log:
        log.write(Kind.BEGAN, 0, 7, 2**40)
    with EventLog(path) as log:
        log.write(Kind.COMPLETED, 1, 7, 2**40, attempt=3)
    first, second = read_events(path)
    assert first == Event(Kind.BEGAN, 0, 7, 1, 2**40, first.at)
    assert second == Event(Kind.COMPLETED, 1, 7, 3, 2**40, second.at)
    assert first.place == Place(7, 2**40)
    assert 0 < first.at <= second.at


def test_no_event_crosses_a_page() -> None:
    """The size of an event divides the smallest page, which is what keeps events whole under SIGKILL."""
    assert 4096 % LAYOUT.size == 0


def test_tail_gives_each_event_once(tmp_path: Path) -> None:
    """A tail gives nothing for a missing file, then each event once, and waits for the rest of half an event."""
    path = tmp_path / "events"
    tail = Tail(path)
    assert list(tail.new()) == []
    whole = LAYOUT.pack(Kind.BEGAN, 0, 1, 1, 5, 99)
    path.write_bytes(whole + whole[:10])
    assert [event.offset for event in tail.new()] == [5]
    assert list(tail.new()) == []
    path.write_bytes(whole + whole)
    assert [event.offset for event in tail.new()] == [5]


def test_torn_line_is_cut_off(tmp_path: Path) -> None:
    """What a kill left of a line is gone before the next process appends."""
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"b":')
    with Lines(path) as lines:
        lines.write(b'{"c":3}')
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'


def test_file_of_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    """Nothing is kept when the very first line was torn; whole files are left alone."""
    torn, whole = tmp_path / "torn", tmp_path / "whole"
    torn.write_bytes(b'{"a":')
    whole.write_bytes(b"1\n2\n")
    with Lines(torn), Lines(whole):
        assert torn.read_bytes() == b""
        assert whole.read_bytes() == b"1\n2\n"
