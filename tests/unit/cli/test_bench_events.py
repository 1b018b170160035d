"""What the measurements make of what handlers did: order, completeness, latencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.cli.bench.events import EventFile, begun, by_partition, ended, place
from aioparallel.cli.bench.latency import figures, latency_figures, problems
from aioparallel.cli.bench.latency_consumer import ROW
from aioparallel.cli.bench.stream import Stream


def test_events_are_told_apart_by_partition() -> None:
    """Beginnings and ends keep their order; the largest offset is one of 40 bits."""
    largest = 2**40 - 1
    events = np.array([place(7, largest), place(0, 3), ~place(7, largest), place(0, 0), ~place(0, 0)])
    assert [steps.tolist() for steps in by_partition(events, 8)] == [[3, 0, ~0], *[[]] * 6, [largest, ~largest]]
    assert begun(events).tolist() == [place(7, largest), place(0, 3), place(0, 0)]
    assert ended(events).tolist() == [place(7, largest), place(0, 0)]


def test_a_file_of_events_is_read_while_it_is_written(tmp_path: Path) -> None:
    """The count is that of the events so far, offset 0 and ends included."""
    path = tmp_path / "events"
    EventFile.make(path, 10)
    writer, reader = EventFile(path), EventFile(path)
    assert reader.count == 0
    for at, event in enumerate([0, ~0, place(3, 9)]):
        writer.view[at] = event
        assert reader.count == at + 1
    assert reader.read().tolist() == [0, ~0, place(3, 9)]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_percentiles_are_by_nearest_rank(values: list[int]) -> None:
    """The median is a value that was seen; half of all are not above it, and less than half are below it."""
    found = latency_figures("x", np.array(values))
    ordered = sorted(values)
    assert found["x_p50_ms"] == round(ordered[(len(values) + 1) // 2 - 1] / 1e6, 3)
    assert found["x_max_ms"] == found["x_p999_ms"] == found["x_p99_ms"] == round(ordered[-1] / 1e6, 3)


def test_percentiles_of_many_and_of_none() -> None:
    """In ms."""
    found = latency_figures("x", np.arange(1, 2_001) * 1_000_000)
    assert found == {"x_p50_ms": 1000.0, "x_p99_ms": 1980.0, "x_p999_ms": 1998.0, "x_max_ms": 2000.0}
    assert latency_figures("x", np.array([], dtype=np.int64)) == {}


def rows_of(stream: Stream) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Every record sent each 10 ms, come after 1 ms and run 2 ms later."""
    rows = np.zeros(stream.records, dtype=ROW)
    rows["serial"] = np.arange(stream.records)
    rows["partition"] = np.array(stream.partition_of_key)[stream.key_numbers]
    for partition in range(stream.partitions):
        here = rows["partition"] == partition
        rows["offset"][here] = np.arange(np.count_nonzero(here))
    rows["sent"] = np.arange(stream.records) * 10_000_000
    rows["arrived"] = rows["sent"] + 1_000_000
    rows["began"] = rows["sent"] + 3_000_000
    return rows


STREAM = Stream(records=400, partitions=4, keys=20, seed=5)


def test_latencies_leave_the_warm_up_apart() -> None:
    """Two seconds of it, by the time of sending; the rate is that of the rest."""
    rows = rows_of(STREAM)
    rows["arrived"][:200] -= 500_000
    found = figures(rows, 100.0)
    assert found["rate_asked"] == found["rate_seen"] == 100
    assert found["arrival_to_handler_p50_ms"] == found["arrival_to_handler_max_ms"] == 2.0
    assert found["produce_to_handler_p99_ms"] == 3.0
    assert found["warm_up_arrival_to_handler_p999_ms"] == 2.5


def test_a_run_with_every_record_once_in_order_has_no_problems() -> None:
    """As it was sent, and also with the keys interleaved otherwise."""
    rows = rows_of(STREAM)
    assert problems(rows, STREAM) == []
    assert problems(rows[np.argsort(rows["partition"], kind="stable")], STREAM) == []


def test_problems_of_a_run_are_found() -> None:
    """A record lost, one handled twice, a key out of order."""
    rows = rows_of(STREAM)
    assert any("never handled" in problem for problem in problems(rows[1:], STREAM))
    assert any("began 2 times" in problem for problem in problems(np.concatenate([rows, rows[-1:]]), STREAM))
    assert any("of the same key" in problem for problem in problems(rows[::-1], STREAM))
