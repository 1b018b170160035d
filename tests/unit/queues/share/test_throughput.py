"""How many records to acquire next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.queues.share.throughput import Bounds, Held, Throughput, wanted

BOUNDS = Bounds(at_once=100, buffered=10_000, buffered_bytes=1_000_000)


def test_before_anything_has_ended_as_many_as_may_run_at_once() -> None:
    """Nobody knows how long handlers take."""
    assert wanted(BOUNDS, Held(0, 0, 0, 100.0), 0.0, 30.0) == (100, "fetching")
    assert wanted(BOUNDS, Held(60, 0, 0, 100.0), 0.0, 30.0) == (40, "fetching")
    assert wanted(BOUNDS, Held(100, 0, 0, 100.0), 0.0, 30.0).records == 0


def test_what_begins_within_a_quarter_of_a_lock_is_read_ahead() -> None:
    """The lock lasts 30 seconds, or 60."""
    assert wanted(BOUNDS, Held(100, 0, 0, 1.0), 100.0, 30.0).records == 750
    assert wanted(BOUNDS, Held(100, 0, 0, 1.0), 100.0, 60.0).records == 1_500
    assert wanted(BOUNDS, Held(100, 700, 700, 1.0), 100.0, 30.0) == (0, "enough ready")


def test_the_bounds() -> None:
    """Records and bytes."""
    assert wanted(BOUNDS, Held(100, 10_000, 0, 1.0), 1e6, 30.0) == (0, "full: max_buffered reached")
    assert wanted(BOUNDS, Held(100, 1, 1_000_000, 1e6), 1e6, 30.0) == (0, "full: max_buffered_bytes reached")
    assert wanted(BOUNDS, Held(0, 0, 0, 500_000.0), 0.0, 30.0).records == 2
    assert wanted(BOUNDS, Held(0, 0, 0, 5e9), 0.0, 30.0).records == 1


@given(st.integers(1, 1_000), st.integers(1, 1_000), st.integers(0, 2_000), st.integers(0, 2_000), st.floats(0, 1e6))
def test_bounds_hold(at_once: int, buffered: int, in_flight: int, held: int, per_second: float) -> None:
    """Together with what is held, never more than both bounds."""
    found = wanted(Bounds(at_once, buffered, 10**9), Held(in_flight, held, held, 1.0), per_second, 30.0).records
    assert found >= 0
    assert found + held <= at_once + buffered or not found


def test_the_throughput_is_that_of_the_last_seconds() -> None:
    """And of the first moments it says little."""
    throughput = Throughput(100.0)
    assert throughput.per_second(0, 100.0) == 0
    assert throughput.per_second(50, 100.01) == 50
    for second in range(1, 41):
        found = throughput.per_second(50 + 10 * second, 100.0 + second)
    assert 9.5 < found < 10.5
    for second in range(41, 60):
        found = throughput.per_second(450, 100.0 + second)
    assert found == 0
