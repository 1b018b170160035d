"""What became of mutants, and what that says about the tests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Score", "Verdict", "wilson"]

_Z = 1.959964
"""95 % of a normal distribution lie within so many deviations."""


class Verdict(Enum):
    """Of one mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NO_TEST = "no test"
    NOT_JUDGED = "not judged"
    """Its tests could not be run. Counts neither way."""


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """The interval, between 0 and 1, that holds the true share in 95 of 100 samples (E. B. Wilson, 1927)."""
    if tries == 0:
        return 0.0, 1.0
    share = hits / tries
    scale = 1 + _Z**2 / tries
    middle = (share + _Z**2 / (2 * tries)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / tries + _Z**2 / (4 * tries**2))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Score:
    """Counts of verdicts. ``population``: how many mutants the sample was drawn from; ``wanted``: its size."""

    killed: int
    timed_out: int
    survived: int
    no_test: int
    not_judged: int
    wanted: int
    population: int

    @classmethod
    def of(cls, verdicts: Iterable[Verdict], *, wanted: int, population: int) -> Score:
        """Counts them."""
        found = list(verdicts)
        return cls(
            found.count(Verdict.KILLED),
            found.count(Verdict.TIMED_OUT),
            found.count(Verdict.SURVIVED),
            found.count(Verdict.NO_TEST),
            found.count(Verdict.NOT_JUDGED),
            wanted,
            population,
        )

    @property
    def judged(self) -> int:
        """Those with a verdict that counts. A mutant without a test counts as one that survived."""
        return self.killed + self.timed_out + self.survived + self.no_test

    def __str__(self) -> str:
        if not self.judged:
            return "none yet"
        noticed = self.killed + self.timed_out
        text = f"{noticed / self.judged:.1%}"
        if self.judged < self.population:
            low, high = wilson(noticed, self.judged)
            text += f" ({low:.1%} to {high:.1%})"
        return text
