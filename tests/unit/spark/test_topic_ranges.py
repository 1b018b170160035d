"""Ranges of topics beside their logs. Needs neither Spark nor Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.spark.logs import Log
from aioparallel.spark.topic_positions import Edge, check_order
from aioparallel.spark.topic_ranges import TopicRange

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LOGS = {"raw": {0: Log(10, 50), 1: Log(0, 20)}}
ENDS: Mapping[str, Mapping[int, int | Edge]] = {"raw": {0: 50, 1: "latest"}}
STARTS: Mapping[str, Mapping[int, int | Edge]] = {"raw": {0: 50, 1: "earliest"}}
RAW = [TopicPartition("raw", number) for number in range(2)]


@pytest.mark.parametrize(
    ("starting", "ending", "finding"),
    [
        (
            {"raw": {0: 3, 1: 0}},
            "latest",
            'starting of raw-0 is offset 3, but the log starts at 10, .*"earliest" reads',
        ),
        ("earliest", {"raw": {0: 3, 1: 0}}, "ending of raw-0 is offset 3, but the log starts at 10"),
        (
            {"raw": {0: 51, 1: 0}},
            "latest",
            "starting of raw-0 is offset 51, but the log ends at 50: there is nothing to read yet",
        ),
        ("earliest", {"raw": {0: 51, 1: 0}}, 'ending of raw-0 is offset 51, but the log ends at 50: "latest" reads'),
        ({"raw": {1: 0}}, "latest", 'starting does not name raw-0: name all 2 partitions of raw; .*"earliest"'),
        ("earliest", {"raw": {0: NOON}}, 'ending does not name raw-1: name all 2 partitions of raw; .*"latest"'),
        ({"raw": {0: 10, 1: 0, 7: 0}}, "latest", "starting names raw-7, but raw has 2 partitions: leave it out"),
    ],
)
def test_what_is_not_in_the_logs(starting: Any, ending: Any, finding: str) -> None:
    """One sentence, with the partition, what was found, and what to write."""
    (found,) = TopicRange(starting, ending, LOGS).findings()
    with pytest.raises(ValueError, match=finding):
        raise ValueError(found)


def test_what_is_gone_may_be_passed_over() -> None:
    """As Spark does it for those who ask for it; what has not come yet is told all the same."""
    assert TopicRange({"raw": {0: 3, 1: 0}}, "latest", LOGS, may_be_gone=True).findings() == []
    assert len(TopicRange({"raw": {0: 51, 1: 0}}, "latest", LOGS, may_be_gone=True).findings()) == 1


def test_what_is_there() -> None:
    """From the first offset to the last, edges, times."""
    whole: list[Any] = ["earliest", NOON, {"raw": {0: 10, 1: "earliest"}}, {"raw": {0: NOON, 1: NOON}}]
    for starting in whole:
        part = TopicRange(starting, ENDS, LOGS)
        assert part.findings() == []


def test_a_time_and_an_offset_are_compared_in_the_log() -> None:
    """The time's offset is asked for only there, and behind the last record it is the end."""
    part = TopicRange(NOON, {"raw": {0: 30}}, LOGS)
    assert part.times_to_ask() == {RAW[0]: 1_767_268_800_000}
    assert part.exchanged({RAW[0]: 30}) == []
    (found,) = part.exchanged({RAW[0]: 31})
    assert "ending of raw-0 is offset 30, before starting, 2026-01-01 12:00:00+00:00 (offset 31)" in found
    assert "(offset 50)" in part.exchanged({RAW[0]: None})[0]
    other = TopicRange({"raw": {0: 30, 1: 5}}, NOON, LOGS)
    assert set(other.times_to_ask()) == set(RAW)
    (found,) = other.exchanged({RAW[0]: 20, RAW[1]: 5})
    assert "ending of raw-0 is 2026-01-01 12:00:00+00:00 (offset 20), before starting, offset 30" in found


@pytest.mark.parametrize(
    ("starting", "ending", "message"),
    [
        (NOON, NOON, "must be later than starting"),
        ({"raw": {0: 30}}, {"raw": {0: 20}}, "of raw-0, 20, is before starting, 30: exchange them"),
        ({"raw": {0: NOON}}, {"raw": {0: NOON - timedelta(seconds=1)}}, "of raw-0, 2026.* is before starting, 2026"),
        (NOON, {"raw": {0: NOON - timedelta(seconds=1)}}, "of raw-0, 2026.* is before starting, 2026"),
        ({"raw": {0: NOON}}, NOON - timedelta(seconds=1), "of raw-0, 2026.* is before starting, 2026"),
        ({"raw": {0: 3}}, {"raw": {0: 4, 1: 4}}, "names partitions 0, 1 of raw, and starting 0: both must name all"),
    ],
)
def test_an_order_that_needs_no_log(starting: Any, ending: Any, message: str) -> None:
    """read_topic tells it too, before any broker is asked."""
    with pytest.raises(ConfigurationError, match=message):
        check_order(starting, ending)


def test_ranges_in_order() -> None:
    """Empty ones of a partition among them; edges are not compared."""
    check_order(STARTS, ENDS)
    check_order("earliest", NOON)
    check_order({"raw": {0: NOON}}, {"raw": {0: NOON}})
