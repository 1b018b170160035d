"""What is left of a partition by its commit, and its map as a strip: compared with counting each offset."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.cli.groups.strip import ASCII, Cell, cells
from aioparallel.cli.groups.work import work_of
from aioparallel.group.client import Committed
from aioparallel.offsets import encode_offset_map
from aioparallel.records.record import TopicPartition

PLACE = TopicPartition("orders", 3)


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, int, int, set[int]]:
    """Beginning and end of a log, a committed offset, and what is complete above it."""
    base = draw(st.integers(0, 50))
    above = draw(st.sets(st.integers(base + 1, base + 60), max_size=40))
    begin = draw(st.integers(0, base + 30))
    return begin, draw(st.integers(begin, base + 70)), base, above


@given(logs())
def test_remaining_is_what_is_not_complete(log: tuple[int, int, int, set[int]]) -> None:
    """Each offset of the log from the committed one on, without those that the map has."""
    begin, end, base, above = log
    highest = max(above, default=base - 1)
    missing = [offset for offset in range(base, highest + 1) if offset not in above]
    metadata = encode_offset_map(base, highest, missing, limit=None) if above else ""
    work = work_of(PLACE, Committed(base, metadata), begin, end)
    left = [offset for offset in range(max(begin, base), end) if offset not in above]
    assert work.remaining == len(left) == work.incomplete + work.unread
    assert work.oldest == (left[0] if left else None)
    assert work.lag == max(0, end - max(begin, base))
    complete = [offset for offset in above if offset >= max(begin, base)]
    assert work.highest_completed == max(complete, default=None)


def test_nothing_committed_counts_from_the_beginning_of_the_log() -> None:
    """And a commit above the end of the log leaves nothing."""
    work = work_of(PLACE, None, 5, 12)
    assert (work.committed, work.lag, work.remaining, work.oldest, work.stored) == (None, 7, 7, 5, None)
    work = work_of(PLACE, Committed(20, ""), 5, 12)
    assert (work.lag, work.remaining, work.oldest, work.is_above_log) == (0, 0, None, True)


@pytest.mark.parametrize("name", ["BitSet", "RunLengthV2Compressed", "Dense"])
def test_the_format_of_a_map_is_named(name: str) -> None:
    """With its length; other text is no map, and says why."""
    metadata = encode_offset_map(10, 19, [10, 12], format=name)
    stored = work_of(PLACE, Committed(10, metadata), 0, 30).stored
    assert stored is not None
    assert (stored.format, stored.characters, stored.problem) == (name, len(metadata), None)


def test_other_text_is_no_map() -> None:
    """Its records would run again, so all count."""
    work = work_of(PLACE, Committed(10, "aioparallel.spark query \U0001f600"), 0, 30)
    assert work.stored is not None
    assert (work.remaining, work.stored.format, work.stored.characters) == (20, None, 26)
    assert "not base64" in (work.stored.problem or "")
    assert work.stored.is_of_spark
    other = work_of(PLACE, Committed(10, "\U0001f600"), 0, 30).stored
    assert other is not None
    assert other.problem is not None
    assert not other.is_of_spark


def test_the_mark_of_a_spark_query() -> None:
    """The commands know what Spark's listener commits, without PySpark."""
    requests = pytest.importorskip("aioparallel.spark.group_requests")
    stored = work_of(PLACE, Committed(10, requests.mark_of(uuid4())), 0, 30).stored
    assert stored is not None
    assert stored.is_of_spark


@given(logs(), st.integers(1, 80))
def test_a_strip_has_a_cell_for_each_range(log: tuple[int, int, int, set[int]], width: int) -> None:
    """Together they are the offsets from the committed one to the highest completed one, each in one cell."""
    _, _, base, above = log
    highest = max(above, default=base - 1)
    missing = tuple(offset for offset in range(base, highest + 1) if offset not in above)
    known = work_of(PLACE, Committed(base, encode_offset_map(base, highest, missing, limit=None)), 0, 200).known
    row, size = cells(known, base, highest, width), highest - base + 1
    assert len(row) == min(width, max(0, size))
    for number, cell in enumerate(row):
        offsets = range(base + size * number // len(row), base + size * (number + 1) // len(row))
        done = sum(offset in above for offset in offsets)
        expected = Cell.COMPLETE if done == len(offsets) else Cell.PARTLY if done else Cell.INCOMPLETE
        assert cell is expected


def test_cells_are_readable_without_colours() -> None:
    """A letter for each state."""
    known = work_of(PLACE, Committed(0, encode_offset_map(0, 11, [0, 1, 2, 3, 5])), 0, 20).known
    assert "".join(map(ASCII.of, cells(known, 0, 11, 3))) == ".+#"
