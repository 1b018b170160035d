"""The interval of a median ratio."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import least_rounds, ratio_interval

RATIOS = st.lists(st.floats(0.1, 10.0), min_size=8, max_size=30)


@pytest.mark.parametrize(("confidence", "rounds"), [(0.5, 2), (0.95, 6), (0.99, 8)])
def test_few_rounds_have_no_interval(confidence: float, rounds: int) -> None:
    """With one sign for each round, all of them are equal by chance too often."""
    assert least_rounds(confidence) == rounds
    found = ratio_interval([1.1] * (rounds - 1), confidence)
    assert (found.low, found.high) == (0.0, math.inf)
    assert ratio_interval([1.1] * rounds, confidence) == pytest.approx((1.1, 1.1, 1.1))


def test_a_known_table() -> None:
    """Of 10 values the interval of 95 % leaves out the 8 lowest and the 8 highest of the 55 means: the critical value
    of the signed-rank test is 8."""
    logs = np.array([0.1, 0.2, 0.4, 0.8, 1.6, -0.3, -0.7, 0.5, 0.05, 1.1])
    firsts, seconds = np.triu_indices(10)
    means = np.sort((logs[firsts] + logs[seconds]) / 2)
    found = ratio_interval(np.exp(logs).tolist())
    assert np.log(found) == pytest.approx([np.median(means), means[8], means[-9]])


@given(RATIOS)
def test_it_holds_the_median_and_turns_with_the_sides(ratios: list[float]) -> None:
    """Its ends lie within what was seen; with the sides exchanged it is the inverse."""
    found = ratio_interval(ratios, 0.99)
    assert min(ratios) * 0.999 <= found.low <= found.median <= found.high <= max(ratios) * 1.001
    turned = ratio_interval([1 / ratio for ratio in ratios], 0.99)
    assert turned == pytest.approx((1 / found.median, 1 / found.high, 1 / found.low))
    assert found.holds(found.median)


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "each round its own"])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_it_holds_the_truth_as_often_as_it_says(noise: str, confidence: float) -> None:
    """In 2,000 comparisons of 12 rounds, whatever the noise is: a true ratio of 1.02 is within it."""
    chance = np.random.default_rng(7)
    held = 0
    for _ in range(2_000):
        spread = 0.03 * (chance.uniform(0.1, 3.0, 12) if noise == "each round its own" else 1.0)
        errors = chance.standard_t(2, 12) if noise == "heavy tails" else chance.standard_normal(12)
        held += ratio_interval(np.exp(0.02 * 0.990131 + spread * errors).tolist(), confidence).holds(1.02)
    assert held / 2_000 >= confidence - 0.01


def test_nothing_has_no_ratio() -> None:
    """Neither have times of 0."""
    for wrong in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="ratios above 0 are needed"):
            ratio_interval(wrong)
