from __future__ import annotations

from pathlib import Path

from aioparallel.cli.demo.events import Event, Kind
from aioparallel.cli.demo.plot import Point, Sample, Timeline, draw, in_flight, read_samples, throughput

SECOND = 1_000_000_000
START = 100 * SECOND


def event(kind: Kind, seconds: float, run: int = 0) -> Event:
    """An event so many seconds after the start."""
    return Event(kind, run, 0, 1, 0, START + int(seconds * SECOND))


def timeline(*events: Event, kills: tuple[float, ...] = ()) -> Timeline:
    """A timeline of these events; kills in seconds after the start."""
    samples = [Sample(START + second * SECOND, 0, 100 - second) for second in range(3)]
    return Timeline("title", events, samples, [START + int(kill * SECOND) for kill in kills], 50.0)


def test_throughput_counts_completions_by_quarter_second() -> None:
    """Each bucket is completions times four; empty buckets are 0, and the last one comes back to 0."""
    line = timeline(
        event(Kind.BEGAN, 0),
        event(Kind.COMPLETED, 0.1),
        event(Kind.FAILED, 0.12),
        event(Kind.COMPLETED, 0.2),
        event(Kind.COMPLETED, 0.6),
    )
    assert throughput(line) == [Point(0, 8), Point(0.25, 0), Point(0.5, 4), Point(0.75, 0)]


def test_in_flight_follows_beginnings_and_ends() -> None:
    """Beginnings add one, completions and failures take one away."""
    line = timeline(event(Kind.BEGAN, 0), event(Kind.BEGAN, 1), event(Kind.FAILED, 2), event(Kind.COMPLETED, 3))
    assert [point.value for point in in_flight(line)] == [0, 1, 2, 1, 0]


def test_in_flight_falls_to_zero_at_a_kill() -> None:
    """What a killed process had in flight is gone at the time of the kill, not when the next process begins."""
    line = timeline(event(Kind.BEGAN, 0), event(Kind.BEGAN, 1), event(Kind.BEGAN, 5, run=1), kills=(2.0,))
    assert in_flight(line)[-2:] == [Point(2.0, 0), Point(5.0, 1)]


def test_samples_without_a_known_lag_are_left_out(tmp_path: Path) -> None:
    """A sample from before the lag is known draws nothing; a missing file is no samples."""
    path = tmp_path / "samples"
    assert read_samples(path) == []
    path.write_text('{"at":1,"run":0,"lag":null}\n{"at":2,"run":1,"lag":7}\n')
    assert read_samples(path) == [Sample(2, 1, 7)]


def test_draws_a_picture(tmp_path: Path) -> None:
    """A PNG of 1200 by 960 pixels is written, with kills and without any events."""
    for name, line in {
        "killed": timeline(event(Kind.BEGAN, 0), event(Kind.COMPLETED, 2), kills=(1.0,)),
        "empty": Timeline("nothing", [], [], [], 0.0),
    }.items():
        path = tmp_path / f"{name}.png"
        draw(line, path)
        header = path.read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 960)
