"""When records came, by one's own clock: always between the moments that are told."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.group.arrivals import Arrival, Arrivals, arrival_of
from aioparallel.group.assignment import Assignment
from aioparallel.records.record import Record, TopicPartition

STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("read"), st.integers(1, 5)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("commit"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)


@given(st.lists(STEP, max_size=80))
def test_a_record_was_written_between_its_moments(steps: list[tuple[str, int]]) -> None:
    """Whatever is written, read, looked at and committed when. It was read a quarter of a second before at most."""
    arrivals, now = Arrivals(), 100.0
    written, seen = list[float](), list[float]()
    base = 0
    for step, number in steps:
        match step:
            case "write":
                written += [now] * number
            case "read" if len(seen) < len(written):
                count = min(number, len(written) - len(seen))
                arrivals.read(len(seen), now, base)
                seen += [now] * count
            case "look" if len(seen) == len(written):
                arrivals.all_read_at = now
            case "commit":
                base = min(base + number, len(seen))
            case "wait":
                now += number / 20
        for offset in range(base, len(seen)):
            found = arrivals.of(offset)
            assert found is not None
            assert found.absent <= written[offset] <= seen[offset] <= found.seen < seen[offset] + 0.25


def test_what_nobody_asks_for_is_forgotten() -> None:
    """Up to the last fetch that began below it."""
    arrivals = Arrivals()
    for number in range(1_000):
        arrivals.read(10 * number, float(number), 10 * number - 15)
    assert len(arrivals) == 3
    assert arrivals.of(0) is None
    assert arrivals.of(9_975) == Arrival(997.0, -math.inf)


def test_a_log_that_lost_its_tail() -> None:
    """Offsets that are used again came when they were read again."""
    arrivals = Arrivals()
    arrivals.read(0, 1.0, 0)
    arrivals.read(10, 2.0, 0)
    arrivals.read(5, 3.0, 0)
    assert [arrivals.of(offset) for offset in (4, 5, 12)] == [Arrival(1.0, -math.inf), *[Arrival(3.0, -math.inf)] * 2]


def test_the_arrival_of_a_record_is_that_in_its_assignment() -> None:
    """Nothing is known of a record that no assignment has read: it came by now."""
    assignment, record, other = Assignment(TopicPartition("t", 0)), Record("t", 0, 7), Record("t", 0, 7)
    record._source = assignment
    assert arrival_of(record).absent == -math.inf
    assignment.arrivals = Arrivals()
    assignment.arrivals.read(5, 1.0, 0)
    assert arrival_of(record) == Arrival(1.0, -math.inf)
    assert arrival_of(other).seen > 1_000_000_000
