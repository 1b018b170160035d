"""The demo's picture."""

from __future__ import annotations

from pathlib import Path

from aioparallel.testing.event_log import Event, EventKind
from examples.flights.plot import draw, moments

SECOND = 1_000_000_000
START = 100 * SECOND


def event(kind: EventKind, seconds: float, offset: int = 0) -> Event:
    """An event so many seconds after the start."""
    return Event(kind, 0, offset, START + int(seconds * SECOND))


RUN = [
    event(EventKind.BEGAN, 0),
    event(EventKind.BEGAN, 0.1, offset=1),
    event(EventKind.ENDED, 0.2),
    event(EventKind.FAILED, 0.7, offset=1),
]


def test_each_quarter_of_a_second() -> None:
    """Completions by second, handlers that ran at its end, records that were not completed yet."""
    assert moments([RUN], [], 5) == [
        {"at": 0.0, "rate": 4.0, "flying": 1, "lag": 4},
        {"at": 0.25, "rate": 0.0, "flying": 1, "lag": 4},
        {"at": 0.5, "rate": 0.0, "flying": 0, "lag": 4},
    ]


def test_a_kill_ends_all_that_was_in_flight() -> None:
    """At its time, not when the next process begins; what is done again lowers no lag."""
    again = [event(EventKind.BEGAN, 1.5), event(EventKind.ENDED, 1.6)]
    found = moments([RUN[:3], again], [START + SECOND], 5)
    assert [moment["flying"] for moment in found] == [1, 1, 1, 1, 0, 0, 0]
    assert {moment["lag"] for moment in found} == {4}


def test_draws_a_picture(tmp_path: Path) -> None:
    """A PNG, with and without kills."""
    for kills in [], [0.5]:
        path = tmp_path / f"{len(kills)}.png"
        draw("title", moments([RUN], [], 5), kills, 50.0, path)
        assert path.read_bytes().startswith(b"\x89PNG")
