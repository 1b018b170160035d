"""Event logs as arrays: what was written is read, and what is no log is said to be none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from aioparallel.testing.event_log import EventLog, read_events
from benchmarks.evidence import Evidence, EvidenceWrong, written

BEGAN = 1 << 62


@pytest.mark.parametrize("times", [False, True])
def test_a_log_is_read_as_the_package_reads_it(tmp_path: Path, times: bool) -> None:
    """With and without times, full or not."""
    path = tmp_path / "events"
    with EventLog(path, times=times, room=3) as log:
        assert Evidence.read(path).events() == []
        log.began((1 << 18) - 1, (1 << 44) - 1)
        log.ended(0, 0)
        assert Evidence.read(path).events() == read_events(path)
        log.failed(2, 3)
        assert len(Evidence.read(path).events()) == 3
        log.began(2, 3)
    assert Evidence.read(path).events() == read_events(path)
    assert Evidence.read(tmp_path / "none").events() == []


def test_events_are_counted_while_they_are_written(tmp_path: Path) -> None:
    """Of a log without times."""
    path = tmp_path / "events"
    assert written(path) == 0
    path.touch()
    assert written(path) == 0
    path.unlink()
    with EventLog(path, room=100) as log:
        for count in range(101):
            assert written(path) == count
            log.began(0, count)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"hello world, this is text", "its 25 bytes are no whole words"),
        (b"hello world, this is textual....", "it begins with 8031924123371070824"),
        (struct.pack("<2Q", 1, BEGAN) + b"abc", "its 19 bytes are no whole words"),
        (struct.pack("<8Q", 7, *[BEGAN] * 7), "it begins with 7"),
        (struct.pack("<2Q", 0, BEGAN), "it begins with 0"),
        (struct.pack("<3Q", 1, BEGAN, 5), "event 1 is of no kind"),
        (struct.pack("<2Q", 2, BEGAN), "it ends within an event"),
    ],
)
def test_what_is_no_log_is_told(tmp_path: Path, content: bytes, problem: str) -> None:
    """With the file's name and what is wrong with it."""
    path = tmp_path / "events"
    path.write_bytes(content)
    with pytest.raises(EvidenceWrong, match=rf"events is no event log: .*{problem}"):
        Evidence.read(path)
    assert written(path) >= 0
