"""The checkers find what they are there to find, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.records.record import Record
from aioparallel.testing.checkers import DeliveryChecker, OrderChecker


def run(checker: OrderChecker, offset: int, key: bytes | None = b"a", partition: int = 0) -> None:
    """One record's handler, from start to end."""
    checker.started(key, partition, offset)
    checker.ended(key, partition, offset)


def rules(checker: OrderChecker) -> list[str]:
    """The rules that were broken, in order."""
    return [violation.rule for violation in checker.violations]


def test_records_in_order_pass() -> None:
    """Ascending offsets of a key, one after the other, are in order, with gaps and a retry."""
    checker = OrderChecker()
    for offset in (3, 7, 7, 12):
        run(checker, offset)
    checker.check()
    assert checker.statistics().retries == 1
    assert checker.statistics().reruns == 0


def test_two_records_of_a_key_at_once_are_an_overlap() -> None:
    """A second record of a key must not start before the first has ended, though its offset is later."""
    checker = OrderChecker()
    checker.started(b"a", 0, 1)
    checker.started(b"a", 0, 2)
    assert rules(checker) == ["overlap"]


def test_a_record_overlaps_with_itself() -> None:
    """The same record in two handlers at once is an overlap, not a retry."""
    checker = OrderChecker()
    checker.started(b"a", 0, 1)
    checker.started(b"a", 0, 1)
    assert rules(checker) == ["overlap"]


def test_an_earlier_offset_is_backwards() -> None:
    """Within an incarnation a lane never goes back; the message names both records."""
    checker = OrderChecker()
    run(checker, 5)
    run(checker, 4)
    with pytest.raises(AssertionError, match=r"backwards: -0 offset 4 of key b'a' against offset 5"):
        checker.check()


def test_other_lanes_are_free() -> None:
    """Other keys, and the same key of other partitions and topics, may run at the same time and in any order."""
    checker = OrderChecker()
    checker.started(b"a", 0, 5)
    checker.started(b"b", 0, 4)
    checker.started(b"a", 1, 1)
    checker.started(b"a", 0, 1, topic="other")
    checker.check()
    assert checker.statistics().lanes == 4


def test_records_without_a_key_have_no_order() -> None:
    """Records without a key are only counted when order is by key."""
    checker = OrderChecker()
    checker.started(None, 0, 5)
    checker.started(None, 0, 4)
    checker.check()
    assert checker.statistics().unordered == 2


def test_partition_order_covers_all_keys() -> None:
    """With order by partition, two keys of one partition are one lane, and so are records without a key."""
    checker = OrderChecker("partition")
    checker.started(b"a", 0, 1)
    checker.started(None, 0, 2)
    assert rules(checker) == ["overlap"]


def test_after_a_crash_a_lane_may_begin_earlier() -> None:
    """What ran before a crash may run again after it, in order; it is counted, and is no violation."""
    checker = OrderChecker()
    for offset in (1, 2, 3):
        run(checker, offset)
    checker.crashed()
    for offset in (2, 3, 4):
        run(checker, offset)
    checker.check()
    assert checker.statistics().reruns == 2
    run(checker, 3)
    assert rules(checker) == ["backwards"]


def test_a_crash_ends_the_handlers() -> None:
    """A record in flight at the crash is not in flight after it: it runs again, and so may what came before it."""
    checker = OrderChecker()
    run(checker, 1)
    checker.started(b"a", 0, 2)
    checker.crashed()
    for offset in (1, 2, 3):
        run(checker, offset)
    checker.check()


def test_an_interrupted_record_is_not_passed_over() -> None:
    """A lane that goes on behind a record which a crash interrupted has lost its order; it is said once."""
    checker = OrderChecker()
    checker.started(b"a", 0, 2)
    checker.crashed()
    run(checker, 3)
    run(checker, 4)
    assert rules(checker) == ["skipped"]


def test_an_interrupted_record_outlives_a_second_crash() -> None:
    """Two crashes in a row do not make the interrupted record forgotten."""
    checker = OrderChecker()
    checker.started(b"a", 0, 2)
    checker.crashed()
    run(checker, 1)
    checker.crashed()
    run(checker, 3)
    assert rules(checker) == ["skipped"]


def test_a_reassigned_partition_may_begin_earlier_but_its_handlers_still_run() -> None:
    """A partition that came back may begin anew, but a handler of its earlier session keeps its lane closed."""
    checker = OrderChecker()
    run(checker, 1)
    run(checker, 1, partition=1)
    checker.started(b"b", 0, 2)
    checker.reassigned(0)
    run(checker, 0)
    checker.check()
    checker.started(b"b", 0, 2)
    assert rules(checker) == ["overlap"]
    run(checker, 0, partition=1)  # was not reassigned
    assert rules(checker) == ["overlap", "backwards"]


def test_handling_wraps_a_handler_that_fails() -> None:
    """A handler that raises has ended, and its record may run again."""
    checker = OrderChecker()
    record = Record("t", 0, 5, key=b"a")
    with pytest.raises(ValueError, match="boom"), checker.handling(record):
        raise ValueError("boom")
    with checker.handling(record):
        checker.started(b"a", 0, 6, topic="t")
    assert rules(checker) == ["overlap"]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 20)), max_size=30))
def test_sequential_runs_are_judged_as_a_sort_would(records: list[tuple[bytes, int]]) -> None:
    """Of records run one after the other, exactly the steps down within a key are violations."""
    checker = OrderChecker()
    expected = 0
    last: dict[bytes, int] = {}
    for key, offset in records:
        run(checker, offset, key)
        expected += offset < last.get(key, -1)
        last[key] = offset
    assert len(checker.violations) == expected


def test_all_handled_once_passes() -> None:
    """Each record handled exactly once satisfies the strictest check."""
    checker: DeliveryChecker[int] = DeliveryChecker()
    for record in range(3):
        checker.handled(record)  # before the broker's acknowledgement came in: no matter
        checker.produced(record)
    checker.check(max_duplicates=0)


def test_lost_records_are_named() -> None:
    """A record that was produced and not handled is lost; the message lists the first ones and counts the rest."""
    checker: DeliveryChecker[int] = DeliveryChecker()
    for record in range(15):
        checker.produced(record)
    checker.handled(0)
    assert checker.lost() == set(range(1, 15))
    with pytest.raises(AssertionError, match=r"(?s)14 of 15 records were lost.*and 4 more"):
        checker.check()


def test_unknown_records_are_named() -> None:
    """A record that was handled and never produced is an error."""
    checker: DeliveryChecker[str] = DeliveryChecker()
    checker.handled("ghost")
    with pytest.raises(AssertionError, match="ghost"):
        checker.check()


def test_duplicates_are_counted_against_the_allowance() -> None:
    """Repetitions pass by default (at least once) and up to the allowance, not above it."""
    checker: DeliveryChecker[tuple[int, int]] = DeliveryChecker()
    checker.produced((0, 1))
    for _ in range(3):
        checker.handled((0, 1))
    assert checker.duplicates() == {(0, 1): 2}
    assert checker.statistics().duplicates == 2
    checker.check()
    checker.check(max_duplicates=2)
    with pytest.raises(AssertionError, match="2 duplicates, 1 allowed"):
        checker.check(max_duplicates=1)
