"""The median of paired ratios with a confidence interval.

The estimate is that of Hodges and Lehmann: the median of the means of all pairs of logarithms. Its interval comes from
the Wilcoxon signed-rank test (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3). It assumes
only that the logarithms of the ratios are distributed symmetrically, as they are if both sides run in random order.
Slow or noisy rounds change its width, not how often it contains the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

__all__ = ["CONFIDENCE", "Interval", "least_rounds", "ratio_interval"]

CONFIDENCE: Final = 0.95


class Interval(NamedTuple):
    """A median and the ends of its interval; 0 and infinity with too few rounds."""

    median: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The width relative to the median: 0.03 is 3 %."""
        return (self.high - self.low) / self.median

    def holds(self, value: float) -> bool:
        """Whether the interval contains the value."""
        return self.low <= value <= self.high


def ratio_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The interval of positive ratios, one of each round. Raises ValueError without any."""
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"ratios above 0 are needed, not {list(ratios)}")
    logs = np.log(np.array(ratios))
    firsts, seconds = np.triu_indices(len(logs))
    means = np.sort((logs[firsts] + logs[seconds]) / 2)
    median = math.exp(float(np.median(means)))
    outside = _outside(len(logs), (1 - confidence) / 2)
    if outside is None:
        return Interval(median, 0.0, math.inf)
    return Interval(median, math.exp(means[outside]), math.exp(means[-1 - outside]))


def least_rounds(confidence: float = CONFIDENCE) -> int:
    """The least number of rounds that has an interval at this confidence."""
    rounds = 1
    while _outside(rounds, (1 - confidence) / 2) is None:
        rounds += 1
    return rounds


@cache
def _outside(count: int, tail: float) -> int | None:
    """How many of the sorted means are outside at each end; None if even the full range has too little confidence.

    Under the null hypothesis each of the 2**count sets of signs has the same probability.
    """
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 0.5**count
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    outside = int(np.searchsorted(np.cumsum(ways), tail, side="right"))
    return outside - 1 if outside else None
