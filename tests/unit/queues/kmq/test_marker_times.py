"""When markers were written, by one's own clock, whatever their timestamps say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.queues.kmq.marker_times import MarkerTimes

PLAY = st.lists(
    st.tuples(
        st.integers(0, 1_000),  # milliseconds until it is written
        st.one_of(
            st.integers(-5_000, 5_000), st.sampled_from([-3_600_000, 3_600_000])
        ),  # how fast its writer's clock is
        st.integers(0, 3_000),  # until it is read
        st.booleans(),  # whether that was all
    ),
    max_size=30,
)
BEGIN = 10_000_000


@given(PLAY)
def test_any_clocks(play: list[tuple[int, int, int, bool]]) -> None:
    """Not before all was read that stood before it, not after it is read, never back; and right where clocks are."""
    times, now, before, all_read_at = MarkerTimes(), BEGIN, 0, 0
    for until_written, ahead, until_read, is_all in play:
        written = now + until_written
        now = written + until_read
        found = times.written_at(written + ahead, now)
        assert max(all_read_at, before) <= found <= now
        if ahead <= 0 and before <= written:
            assert found <= written
        if ahead >= 0:
            assert found >= written
        before = found
        if is_all:
            times.all_read(now)
            all_read_at = now


@given(PLAY)
def test_clocks_that_are_right(play: list[tuple[int, int, int, bool]]) -> None:
    """Their timestamps are taken as they are."""
    times, now = MarkerTimes(), BEGIN
    for until_written, _, until_read, is_all in play:
        written = now + until_written
        now = written + until_read
        assert times.written_at(written, now) == written
        if is_all:
            times.all_read(now)
