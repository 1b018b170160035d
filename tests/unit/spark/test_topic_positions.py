"""Where reading begins and ends, in the options of Spark's Kafka source. Needs no Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.topic_positions import ending_options, starting_options

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000


def starting(position: Any, *, streaming: bool = True, topics: tuple[str, ...] = ("raw",)) -> dict[str, str]:
    """The options of a start."""
    return starting_options(position, topics, streaming=streaming, past_the_end="error")


@pytest.mark.parametrize("edge", ["earliest", "latest"])
def test_an_edge_is_given_as_it_is(edge: str) -> None:
    """Spark has the same two words."""
    assert starting(edge) == {"startingOffsets": edge}


def test_offsets_become_json_with_edges_as_numbers() -> None:
    """-2 and -1 are Spark's numbers for the edges."""
    options = starting({"raw": {0: 7, 1: "earliest", 2: "latest"}})
    assert {name: json.loads(value) for name, value in options.items()} == {
        "startingOffsets": {"raw": {"0": 7, "1": -2, "2": -1}}
    }


def test_a_time_is_milliseconds_whatever_its_zone() -> None:
    """The same moment in another zone is the same number, and what to do past the end goes with it."""
    expected = {"startingTimestamp": str(NOON_MS), "startingOffsetsByTimestampStrategy": "error"}
    assert starting(NOON) == starting(NOON.astimezone(timezone(timedelta(hours=5)))) == expected
    assert ending_options(NOON, ["raw"]) == {"endingTimestamp": str(NOON_MS)}


@pytest.mark.parametrize(
    ("microseconds", "first"), [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2), (999_999, 1_000)]
)
def test_each_bound_means_what_it_says_at_the_microsecond(microseconds: int, first: int) -> None:
    """Reading begins with the first record at or after the time, and ends before it: both are the same timestamp, so a
    range and the one that follows it have each record once."""
    time = NOON + timedelta(microseconds=microseconds)
    expected = NOON_MS + first
    assert starting(time)["startingTimestamp"] == ending_options(time, ["raw"])["endingTimestamp"] == str(expected)
    for options in (starting({"raw": {0: time}}), ending_options({"raw": {0: time}}, ["raw"])):
        (by_partition,) = [value for name, value in options.items() if name.endswith("OffsetsByTimestamp")]
        assert json.loads(by_partition) == {"raw": {"0": expected}}


@pytest.mark.parametrize("before", [timedelta(milliseconds=1), timedelta(days=700_000)])
def test_a_time_before_the_epoch_is_the_beginning(before: timedelta) -> None:
    """The number -1 is the end of the log to Kafka, and others are refused with no word about them."""
    assert starting(datetime(1970, 1, 1, tzinfo=UTC) - before)["startingTimestamp"] == "0"


def test_times_by_partition() -> None:
    """All of them times: Spark has another option for these."""
    options = ending_options({"raw": {0: NOON, 1: NOON + timedelta(seconds=1)}}, ["raw"])
    assert json.loads(options.pop("endingOffsetsByTimestamp")) == {"raw": {"0": NOON_MS, "1": NOON_MS + 1000}}
    assert options == {}


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("newest", "starting='newest': must be \"earliest\""),
        (7, "starting=7: must be"),
        ({}, "must be"),
        ({"raw": 7}, "must be"),
        ({"raw": {}}, "must be"),
        ({"raw": {"0": 7}}, "must be"),
        ({"raw": {0: -1}}, "has -1 as an offset"),
        ({"raw": {0: True}}, "has True as an offset"),
        ({"raw": {0: 1.5}}, "has 1.5 as an offset"),
        ({"other": {0: 7}}, "must name the topics that are read, raw"),
        ({"raw": {0: 7, 1: NOON}}, "offsets and times"),
        (NOON.replace(tzinfo=None), "time zone"),
        ({"raw": {0: NOON.replace(tzinfo=None)}}, "time zone"),
    ],
)
def test_what_is_no_position_is_refused(position: object, message: str) -> None:
    """The option, what was found, and what it may be."""
    with pytest.raises(ConfigurationError, match=message):
        starting(position)


def test_a_batch_that_would_be_empty_is_refused() -> None:
    """Neither beginning at the end nor ending at the beginning, for all partitions or for one; streams may."""
    for position in ("latest", {"raw": {0: 7, 1: "latest"}}):
        with pytest.raises(ConfigurationError, match="begins at the end is empty"):
            starting(position, streaming=False)
    for wrong in ("earliest", {"raw": {0: "earliest"}}):
        with pytest.raises(ConfigurationError, match="ends at the beginning is empty"):
            ending_options(wrong, ["raw"])  # type: ignore[arg-type]


def test_what_a_time_past_the_end_does_is_one_of_two() -> None:
    """Spark's two strategies."""
    options = starting_options(NOON, ["raw"], streaming=True, past_the_end="latest")
    assert options["startingOffsetsByTimestampStrategy"] == "latest"
    with pytest.raises(ConfigurationError, match=r"past_the_end=.*must be one of error, latest"):
        starting_options(NOON, ["raw"], streaming=True, past_the_end="earliest")  # type: ignore[arg-type]
