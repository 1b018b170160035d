"""Who is said to hold the loop, for how long, and how often that is told: with times passed in."""

from __future__ import annotations

import pytest

from aioparallel.engine.watch.blockage_log import BlockageLog
from aioparallel.engine.watch.blockages import (
    LATE,
    SAMPLE_INTERVAL,
    Blockage,
    BlockageDetector,
    StackLine,
    StackSample,
)
from aioparallel.records.record import Record


def sample(record: Record | None, handler: str = "handle") -> StackSample:
    return StackSample(record, handler if record else "", (StackLine("file.py", 1, handler),))


A, B = Record("t", 0, 1), Record("t", 0, 2)


def blockages_of(*looks: tuple[float, Record | None], late: float = 0.0, starved: float = 0.0) -> list[Blockage]:
    """What is found when these are seen at these times after the question, and the answer comes with the last one;
    each look so late, and the loop's thread without a processor for that part of the time."""
    detector = BlockageDetector()
    detector.asked(0.0)
    for at, record in looks:
        if late > LATE:
            detector.late()
        detector.sampled(sample(record), at, starved * at)
    return detector.answered(looks[-1][0])


def test_two_looks_that_see_the_same_record_are_a_hold() -> None:
    """It counts from the question on; one sample is not enough."""
    found = blockages_of((0.05, A), (0.1, A), (0.3, A))
    assert [(one.sample.record, round(one.seconds, 3)) for one in found] == [(A, 0.3)]
    assert blockages_of((0.05, A)) == []


def test_records_that_take_turns_are_none() -> None:
    """Quick ones in a turn of the loop that lasts: a busy machine."""
    assert blockages_of((0.05, A), (0.1, B), (0.15, A), (0.2, B)) == []


def test_one_after_the_other_has_its_own_time() -> None:
    """Two holds in one turn of the loop: none of them gets the time of the other."""
    found = blockages_of((0.05, A), (0.1, A), (0.15, B), (0.2, B), (0.25, B))
    assert [(blockage.sample.record, round(blockage.seconds, 3)) for blockage in found] == [(A, 0.1), (B, 0.1)]


def test_who_looks_too_late_blames_nobody() -> None:
    """The process was stopped, or a garbage collection kept the interpreter to itself."""
    assert blockages_of((0.05, A), (2.0, A), (5.0, A), late=LATE * 2) == []
    detector = BlockageDetector()
    detector.asked(0.0)
    detector.sampled(sample(A), 0.05, 0.0)
    detector.late()
    detector.sampled(sample(A), 9.0, 0.0)
    detector.sampled(sample(A), 9.0 + SAMPLE_INTERVAL, 0.0)
    (blockage,) = detector.answered(9.06)
    assert blockage.seconds < 0.1  # what was before is not counted


def test_a_thread_without_a_processor_blames_nobody() -> None:
    """It stands at the same line because nobody lets it run."""
    assert blockages_of((0.05, A), (0.1, A), (0.4, A), starved=0.95) == []
    assert len(blockages_of((0.05, A), (0.1, A), (0.4, A), starved=0.5)) == 1


def test_what_is_no_handler_is_told_after_a_second() -> None:
    """Short ones are nobody's business."""
    assert blockages_of((0.05, None), (0.5, None), (0.9, None)) == []
    assert [blockage.sample.record for blockage in blockages_of((0.05, None), (0.5, None), (1.1, None))] == [None]


def test_a_loop_about_to_turn_is_not_held() -> None:
    """Two looks at one record with a rest between them are not one after the other."""
    detector = BlockageDetector()
    detector.asked(0.0)
    for at, seen in ((0.05, sample(A)), (0.1, None), (0.15, sample(A))):
        detector.sampled(seen, at, 0.0)
    assert detector.answered(0.2) == []


def held(record: Record, since: float, seconds: float, handler: str = "handle") -> Blockage:
    return Blockage(sample(record, handler), since, since + seconds)


def test_a_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """For each handler, with the number left out; one that was told while it went on is not told again."""
    log = BlockageLog()
    for at in range(12):
        log.ended([held(A, at, 0.3)], at + 0.3)
    log.ended([held(B, 5, 0.3, "another")], 5.3)
    log.goes_on(held(A, 30, 1.0), 31.0)
    log.goes_on(held(A, 30, 1.5), 31.5)
    log.ended([held(A, 30, 12.0)], 42.0)
    told = [line.getMessage().split(":")[1] for line in caplog.records]
    assert told == [
        " its handler handle blocked the event loop for 0.3 s",
        " its handler handle blocked the event loop for 0.3 s (9 more lines about it left out)",
        " its handler another blocked the event loop for 0.3 s",
        " its handler handle has blocked the event loop for 1 s and still does (1 more lines about it left out)",
    ]


def test_holds_are_remembered_for_a_minute() -> None:
    """The longest of each handler, the longest first, and how many there were."""
    log = BlockageLog()
    log.ended([held(A, 0.0, 0.3), held(A, 1.0, 0.5), held(B, 2.0, 2.0, "another")], 4.0)
    assert [(worst.blockage.seconds, worst.times) for worst in log.worst(5.0)] == [(2.0, 1), (0.5, 2)]
    assert [worst.times for worst in log.worst(61.0)] == [1, 1]
    assert log.worst(70.0) == []
    log.goes_on(held(B, 60.0, 9.0), 69.0)
    assert [worst.blockage.seconds for worst in log.worst(70.0)] == [9.0]
