"""How many records a poll may bring of each priority: exponential parts, and bursts into what others leave unused.

The algorithm is that of Flipkart's priority-kafka-client 1.0.0 (``ExpMaxPollRecordsDistributor``,
``CapacityBurstPriorityKafkaConsumer``). Plain methods; priorities ascend from 0, the lowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioparallel.records.errors import ConfigurationError

__all__ = ["PollBudget", "Window", "exponential", "shares"]


def exponential(priorities: int) -> list[int]:
    """Weights: each priority counts twice as much as the one below it."""
    return [2**priority for priority in range(priorities)]


def shares(weights: Sequence[float], records: int) -> list[int]:
    """Share ``records`` out by weight, rounded down; what is left over goes to the highest priority.

    Raises ConfigurationError where one would have none.
    """
    total = sum(weights)
    parts = [int(records * weight // total) for weight in weights]
    if not all(parts):
        # Of the exponential weights the sum is the least that gives each its own.
        least = -(-total // min(weights))
        raise ConfigurationError(
            "max_poll_records", records, f"cannot be shared out: {least:g} or more give each priority one record"
        )
    parts[-1] += records - sum(parts)
    return parts


class Window:
    """How many records the last polls have brought of one priority.

    ``size``: polls that are remembered. ``threshold``: of these, so many must have brought ``limit`` records, or more,
    for the priority to be *maxed out*: there is more of it than it may bring.
    """

    def __init__(self, size: int, threshold: int, limit: int) -> None:
        self._counts = [0] * size
        self._next = 0
        self._threshold = threshold
        self._limit = limit

    def add(self, count: int) -> None:
        """The newest poll; the oldest is forgotten."""
        self._counts[self._next] = count
        self._next = (self._next + 1) % len(self._counts)

    @property
    def is_maxed_out(self) -> bool:
        """Whether there is more of this priority than its part."""
        return sum(count >= self._limit for count in self._counts) >= self._threshold

    @property
    def unused(self) -> int:
        """Records of its part that none of these polls has needed."""
        return max(0, self._limit - max(self._counts))


class PollBudget:
    """The budget of ``records`` for each poll, shared out by ``weights``.

    Of the priorities that are maxed out the highest bursts: it may bring what the others do not use, too. Where they
    use all, nobody bursts.
    """

    def __init__(self, weights: Sequence[float], records: int, *, window: int = 6, threshold: int = 4) -> None:
        self.parts = shares(weights, records)
        """Records of each priority without bursts."""
        self.windows = [Window(window, threshold, part) for part in self.parts]

    def burst(self) -> tuple[int, int]:
        """Which priority may bring more in the next poll, and how many records; 0 records: none."""
        for priority in reversed(range(len(self.windows))):
            if self.windows[priority].is_maxed_out:
                return priority, sum(window.unused for other, window in enumerate(self.windows) if other != priority)
        return 0, 0

    def polled(self, counts: Sequence[int]) -> None:
        """What a poll has brought of each priority."""
        for window, count in zip(self.windows, counts, strict=True):
            window.add(count)
