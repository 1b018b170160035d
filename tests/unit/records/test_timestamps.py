"""Times of records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.records.timestamps import first_timestamp_at

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(microseconds=st.integers(0, 4 * 10**15), timestamp=st.integers(-2, 2))
def test_a_record_is_at_or_after_a_time_or_before_it(microseconds: int, timestamp: int) -> None:
    """Compared as timestamps and as times it is the same, close to the time; no float rounds anything."""
    time, near = EPOCH + timedelta(microseconds=microseconds), microseconds // 1_000 + timestamp
    assert (near >= first_timestamp_at(time)) is (EPOCH + timedelta(milliseconds=near) >= time)


@pytest.mark.parametrize(
    ("time", "first"),
    [
        (datetime(2026, 1, 1, 0, 0, 59, 999_999, tzinfo=UTC), 1_767_225_660_000),
        (datetime(2026, 1, 1, 0, 0, 59, 999_000, tzinfo=timezone(timedelta(hours=-5))), 1_767_243_659_999),
        (EPOCH - timedelta(microseconds=1), 0),
        (datetime.min.replace(tzinfo=UTC), 0),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_times_of_all_kinds(time: datetime, first: int) -> None:
    """Of any zone; before the epoch it is the beginning."""
    assert first_timestamp_at(time) == first
