"""How many records of each priority a poll may return: exponential shares, and bursts into unused shares.

The algorithm is that of Flipkart's priority-kafka-client 1.0.0 (``ExpMaxPollRecordsDistributor``,
``CapacityBurstPriorityKafkaConsumer``). Plain methods; priorities ascend from 0, the lowest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aioparallel.records.errors import ConfigurationError

__all__ = ["PollBudget", "Window", "exponential", "shares"]


def exponential(priorities: int) -> list[int]:
    """Weights: each priority weighs twice as much as the one below it."""
    return [2**priority for priority in range(priorities)]


def shares(weights: Sequence[float], records: int) -> list[int]:
    """Divide ``records`` by weight, rounded down; the remainder goes to the highest priority.

    Raises ConfigurationError if a priority would get none.
    """
    total = sum(weights)
    parts = [int(records * weight // total) for weight in weights]
    if not all(parts):
        # With exponential weights the sum of the weights is the smallest budget that gives each priority a record.
        least = -(-total // min(weights))
        raise ConfigurationError(
            "max_poll_records", records, f"cannot be shared out: {least:g} or more give each priority one record"
        )
    parts[-1] += records - sum(parts)
    return parts


class Window:
    """How many records of one priority the last polls returned.

    ``size``: the number of polls. A priority is *maxed out* if ``threshold`` of them returned ``limit`` records or
    more: more of its records wait than its share allows.
    """

    def __init__(self, size: int, threshold: int, limit: int) -> None:
        self._counts = deque([0] * size, maxlen=size)
        self._threshold = threshold
        self._limit = limit

    def add(self, count: int) -> None:
        """Add the newest poll and forget the oldest."""
        self._counts.append(count)

    @property
    def is_maxed_out(self) -> bool:
        """Whether more records of this priority wait than its share allows."""
        return sum(count >= self._limit for count in self._counts) >= self._threshold

    @property
    def unused(self) -> int:
        """Records of its share that none of these polls needed."""
        return max(0, self._limit - max(self._counts))


class PollBudget:
    """The budget of ``records`` for each poll, divided by ``weights``.

    The highest priority that is maxed out bursts: it may also use what the others leave unused.
    """

    def __init__(self, weights: Sequence[float], records: int, *, window: int = 6, threshold: int = 4) -> None:
        self.parts = shares(weights, records)
        """The share of each priority in records, without bursts."""
        self.windows = [Window(window, threshold, part) for part in self.parts]

    def burst(self) -> tuple[int, int]:
        """Returns the priority that bursts in the next poll and how many more records it may return; 0: none."""
        for priority in reversed(range(len(self.windows))):
            if self.windows[priority].is_maxed_out:
                return priority, sum(window.unused for other, window in enumerate(self.windows) if other != priority)
        return 0, 0

    def polled(self, counts: Sequence[int]) -> None:
        """Add the records of each priority that a poll returned."""
        for window, count in zip(self.windows, counts, strict=True):
            window.add(count)
