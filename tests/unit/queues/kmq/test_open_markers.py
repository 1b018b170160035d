"""Which records are somebody's, and until when."""

from __future__ import annotations

import random

from aioparallel.queues.kmq.open_markers import OpenMarkers


def two() -> OpenMarkers:
    """As upstream's MarkersQueueTest begins."""
    markers = OpenMarkers()
    markers.started(100, 1000, 10_000 + 4_000)
    markers.started(101, 1001, 12_000 + 4_000)
    return markers


def test_oracle_1_5_the_first_is_due() -> None:
    """MarkersQueueTest: at 15,000 the first."""
    assert two().due(15_000, 10) == [1000]


def test_oracle_1_5_both_are_due() -> None:
    """MarkersQueueTest: at 17,000 both."""
    assert set(two().due(17_000, 10)) == {1000, 1001}


def test_each_is_told_once_and_stays_open_until_it_ends() -> None:
    """Or is asked for again."""
    markers = two()
    assert markers.due(20_000, 1) == [1000]
    assert markers.due(20_000, 9) == [1001]
    assert markers.due(90_000, 9) == []
    assert len(markers) == 2
    markers.again(1000, 95_000)
    markers.again(7, 95_000)
    assert markers.due(94_999, 9) == []
    assert markers.due(95_000, 9) == [1000]
    assert markers.ended(1000) == 100
    assert markers.ended(1000) is None
    markers.again(1000, 95_000)
    assert markers.due(99_000, 9) == []


def test_the_last_start_marker_counts() -> None:
    """Longer or shorter than the one before, which need not be kept."""
    markers = two()
    assert markers.started(110, 1000, 50_000) == 100
    assert markers.due(20_000, 9) == [1001]
    assert markers.started(111, 1000, 21_000) == 110
    assert markers.due(21_000, 9) == [1000]
    assert markers.ended(1000) == 111


def test_any_course_against_a_simple_one() -> None:
    """Starts, ends and looks in any order, and no memory of what has ended."""
    chance = random.Random(7)
    for _ in range(200):
        markers, model, told = OpenMarkers(), dict[int, tuple[int, int]](), set[int]()
        now = 0
        for marker in range(400):
            now += chance.randrange(20)
            offset = chance.randrange(30)
            match chance.randrange(3):
                case 0:
                    before = model.get(offset)
                    model[offset] = marker, now + chance.randrange(200)
                    told.discard(offset)
                    assert markers.started(marker, offset, model[offset][1]) == (before and before[0])
                case 1:
                    before = model.pop(offset, None)
                    assert markers.ended(offset) == (before and before[0])
                case _:
                    due = {one for one, (_, until) in model.items() if until <= now} - told
                    assert set(markers.due(now, 100)) == due
                    told |= due
        assert len(markers) == len(model)


def test_it_forgets_what_has_ended() -> None:
    """Long before it would have been due."""
    markers = OpenMarkers()
    for offset in range(100_000):
        markers.started(2 * offset, offset, 10**9)
        markers.ended(offset)
    assert len(markers._heap) < 2_000


def test_it_forgets_nothing_that_is_open() -> None:
    """However many have ended meanwhile: a record whose lease is over is told, or it would never be delivered again."""
    markers = OpenMarkers()
    for offset in range(10):
        markers.started(offset, offset, 5_000 - offset)
    for offset in range(10, 10_000):
        markers.started(offset, offset, 10**9)
        markers.ended(offset)
    assert markers.due(4_994, 99) == [9, 8, 7, 6]
    assert markers.due(5_000, 99) == [5, 4, 3, 2, 1, 0]
