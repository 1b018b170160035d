"""The poll budget against the oracles of priority-kafka-client 1.0.0."""

from __future__ import annotations

import pytest

from aioparallel import ConfigurationError
from aioparallel.queues.priority import priority_group, priority_of, priority_topic
from aioparallel.queues.priority.budget import PollBudget, Window, exponential, shares


@pytest.mark.parametrize(
    ("priorities", "records", "parts"),
    [
        (3, 50, [7, 14, 29]),
        (3, 10, [1, 2, 7]),
        (3, 7, [1, 2, 4]),
        (1, 5, [5]),
        (2, 3, [1, 2]),
        (2, 100, [33, 67]),
        (4, 15, [1, 2, 4, 8]),
        (4, 100, [6, 13, 26, 55]),
        (5, 500, [16, 32, 64, 129, 259]),
        (3, 500, [71, 142, 287]),
    ],
)
def test_oracle_2_2_exponential_parts(priorities: int, records: int, parts: list[int]) -> None:
    """ExpMaxPollRecordsDistributorTest, and what its formula gives beyond it."""
    assert shares(exponential(priorities), records) == parts


def test_oracle_2_2_too_few_records() -> None:
    """(3, 2) is refused, and says how many there must be."""
    with pytest.raises(ConfigurationError, match=r"max_poll_records.*7 or more"):
        shares(exponential(3), 2)
    assert shares([0.5, 1.5, 2.0], 8) == [1, 3, 4]


def test_oracle_2_3_window() -> None:
    """WindowTest: size 6, threshold 4, limit 50."""
    window = Window(6, 4, 50)

    def state() -> tuple[bool, int]:
        return window.is_maxed_out, window.unused

    assert state() == (False, 50)
    for counts, expected in (
        ([10], (False, 40)),
        ([10] * 5, (False, 40)),
        ([30], (False, 20)),
        ([50] * 3, (False, 0)),
        ([50], (True, 0)),
        ([30, 20, 10], (False, 0)),
    ):
        for count in counts:
            window.add(count)
        assert state() == expected


def budget(*polls: list[int]) -> PollBudget:
    """Of three priorities and 50 records, with these polls by priority, lowest first."""
    made = PollBudget(exponential(3), 50)
    for window, counts in zip(made.windows, polls, strict=True):
        for count in counts:
            window.add(count)
    return made


def test_oracle_2_4_no_burst_with_empty_windows() -> None:
    """testPollNoBurstEmptyWindows: nothing was polled, so nobody is maxed out."""
    assert budget([], [], []).burst() == (0, 0)


@pytest.mark.parametrize(
    ("polls", "bursting", "records"),
    [
        # testPollNoBurstLowestPriority: 7 becomes 15.
        (([7] * 6, [10] * 6 + [0, 1, 2], [25] * 6 + [0, 1, 2]), 0, 15),
        # testPollNoBurstHigherPriority: 14 becomes 20.
        (([5] * 6, [14] * 6, [25] * 6), 1, 20),
        # The four cases of the README.
        (([7] * 6, [14] * 6, [29] * 6), 2, 29),
        (([7] * 6, [14, 14, 14, 11, 10, 9], [29] * 6), 2, 29),
        (([7] * 6, [10, 10, 7, 10, 9, 0], [29] * 6), 2, 33),
        (([7] * 6, [10, 10, 7, 10, 9, 0], [20, 25, 25, 20, 15, 10]), 0, 15),
    ],
)
def test_oracle_2_4_and_2_7_bursts(polls: tuple[list[int], ...], bursting: int, records: int) -> None:
    """CapacityBurstPriorityKafkaConsumerTest: the highest that is maxed out gets what the others have not used."""
    made = budget(*polls)
    priority, burst = made.burst()
    assert (priority, made.parts[priority] + burst) == (bursting, records)


def test_a_burst_counts_as_maxed_out() -> None:
    """A poll that brought more than the part does so too, so a burst goes on while there is more."""
    made = budget([], [], [])
    for _ in range(4):
        made.polled([7, 0, 0])
    assert made.burst() == (0, 43)
    for _ in range(6):
        made.polled([50, 0, 0])
    assert made.burst() == (0, 43)
    made.polled([50, 0, 29])
    assert made.burst() == (0, 14)


def test_oracle_2_7_names() -> None:
    """ClientUtilsTest."""
    assert priority_topic("XYZ", 9) == "XYZ-9"
    assert priority_group("ABC", 4) == "ABC-4"
    assert priority_of("XYZ-6") == 6
    for wrong in ("XYZ", "XYZ-", "XYZ-a", "XYZ-²"):
        with pytest.raises(ValueError, match="names no priority"):
            priority_of(wrong)
