"""What goes into which commit request."""

from __future__ import annotations

from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import Sample, requests
from aioparallel.records.record import TopicPartition


def one(number: int, text: str, *, is_first: bool) -> Sample:
    assignment = Assignment(TopicPartition("t", number))
    if not is_first:
        assignment.acknowledged = Committed(0, "")
    return Sample(assignment, Committed(0, text), (0, 0), -1, cut=False)


def test_first_positions_lead_in_their_order() -> None:
    """They are in the first request, however much the maps of others hold: a crash between two requests leaves none of
    them out."""
    maps = [one(number, "x" * 4_000, is_first=False) for number in range(200)]
    first = [one(number, "", is_first=True) for number in (200, 203, 201)]
    parts = [part for _, part in requests([*maps[:100], *first, *maps[100:]])]
    assert len(parts) > 1
    assert parts[0][:3] == first
    assert [sample for part in parts for sample in part][3:] == maps
