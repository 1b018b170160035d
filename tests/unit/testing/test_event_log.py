"""Event logs: what is written comes back, also from a process that was killed, and feeds the checkers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel import Record
from aioparallel.testing import DeliveryChecker, OrderChecker
from aioparallel.testing.event_log import Event, EventKind, EventLog, EventTail, read_events, replay

KILLED = """
import os, signal, sys
from pathlib import Path
from aioparallel.testing.event_log import EventLog
log = EventLog(Path(sys.argv[1]), times=True)
for offset in range(1000):
    log.began(3, offset)
os.kill(os.getpid(), signal.SIGKILL)
"""

Written = list[tuple[EventKind, int, int]]


def write(log: EventLog, events: Written) -> None:
    """Each by the method of its kind."""
    methods = {EventKind.BEGAN: log.began, EventKind.ENDED: log.ended, EventKind.FAILED: log.failed}
    for kind, partition, offset in events:
        methods[kind](partition, offset)


@given(
    st.lists(st.tuples(st.sampled_from(EventKind), st.integers(0, 2**18 - 1), st.integers(0, 2**44 - 1)), max_size=20),
    st.booleans(),
    st.integers(0, 5),
)
def test_events_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, events: Written, times: bool, room: int
) -> None:
    """Kind, partition and offset of each, in order, with or without times, past any room."""
    path = tmp_path_factory.mktemp("log") / "events"
    with EventLog(path, times=times, room=room) as log:
        write(log, events)
    found = read_events(path)
    assert [(event.kind, event.partition, event.offset) for event in found] == events
    ats = [event.at for event in found]
    assert ats == sorted(ats)
    assert all(bool(at) == times for at in ats)


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    """SIGKILL takes nothing of it."""
    path = tmp_path / "events"
    ran = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert ran.returncode == -signal.SIGKILL
    assert [(event.partition, event.offset) for event in read_events(path)] == [(3, offset) for offset in range(1000)]


@pytest.mark.parametrize("times", [False, True])
def test_a_tail_gives_each_event_once(tmp_path: Path, times: bool) -> None:
    """None while there is no file; then what is new at each look, beyond the room and more than one read takes."""
    path = tmp_path / "events"
    tail = EventTail(path)
    assert tail.new() == []
    with EventLog(path, times=times, room=10) as log:
        assert tail.new() == []
        seen = 0
        for many in (1, 0, 9, 5, 140_000):
            for offset in range(seen, seen + many):
                log.began(0, offset)
            assert [event.offset for event in tail.new()] == list(range(seen, seen + many))
            seen += many


def test_a_log_of_another_process_is_left_alone(tmp_path: Path) -> None:
    """A file that is there already is refused."""
    path = tmp_path / "events"
    EventLog(path).close()
    with pytest.raises(FileExistsError):
        EventLog(path)


def test_words_may_be_stored_directly(tmp_path: Path) -> None:
    """Within the room that was asked for."""
    with EventLog(tmp_path / "events", room=2) as log:
        log.words[1] = log.word_of(EventKind.BEGAN, 1, 5)
        log.words[2] = log.word_of(EventKind.ENDED, 1, 5)
    assert read_events(tmp_path / "events") == [Event(EventKind.BEGAN, 1, 5), Event(EventKind.ENDED, 1, 5)]


def test_a_log_takes_the_room_of_what_is_written(tmp_path: Path) -> None:
    """Room for a million events takes next to nothing on the disk."""
    path = tmp_path / "events"
    with EventLog(path, room=1_000_000) as log:
        log.began(0, 0)
    assert os.stat(path).st_blocks * 512 < 100_000


def test_handling_notes_how_a_handler_ended(tmp_path: Path) -> None:
    """Ended, or failed where it raised; the exception goes on."""
    path = tmp_path / "events"
    with EventLog(path) as log:
        with log.handling(Record("t", 1, 7)):
            pass
        with pytest.raises(KeyError), log.handling(Record("t", 1, 8)):
            raise KeyError
    kinds = [(event.kind, event.offset) for event in read_events(path)]
    began, ended, failed = EventKind.BEGAN, EventKind.ENDED, EventKind.FAILED
    assert kinds == [(began, 7), (ended, 7), (began, 8), (failed, 8)]


def test_checkers_hear_what_a_log_says() -> None:
    """An overlap, a record that goes backwards, and one that only began are found."""
    began, ended, failed = EventKind.BEGAN, EventKind.ENDED, EventKind.FAILED
    order, delivery = OrderChecker(), DeliveryChecker[tuple[int, int]]()
    for offset in range(4):
        delivery.produced((0, offset))
    told = [(began, 1), (began, 2), (ended, 1), (failed, 2), (began, 0), (ended, 0), (began, 3)]
    replay([Event(kind, 0, offset) for kind, offset in told], lambda partition, offset: b"k", order, delivery)
    assert [(one.rule, one.offset, one.previous) for one in order.violations] == [
        ("overlap", 2, 1),
        ("backwards", 0, 2),
    ]
    assert delivery.lost() == {(0, 2), (0, 3)}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Nothing is written under another record's name."""
    with EventLog(tmp_path / "events") as log:
        for place in ((2**18, 0), (0, 2**44)):
            with pytest.raises(ValueError, match="does not fit"):
                log.began(*place)
    assert read_events(tmp_path / "events") == []


@pytest.mark.parametrize("content", [b"just a text, of some length", b"\x01" + bytes(7) + b"\x05" + bytes(7)])
def test_what_is_no_event_log_is_told(tmp_path: Path, content: bytes) -> None:
    """By the file's name."""
    path = tmp_path / "events"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="events is not an event log"):
        read_events(path)
