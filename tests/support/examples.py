"""How many examples a property test runs, where hypothesis' own hundred are too many or too few."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_EVERY_DAY = 100
"""Hypothesis' default: the profile of those who explore has more."""


def examples(count: int, exploring: int | None = None) -> int:
    """``count`` in the tests of every day, and as many times more as the profile in use runs more than 100.

    ``exploring``: a larger count, of those who explore. For a test that takes long.
    """
    times = settings().max_examples
    return (count if exploring is None or times <= _EVERY_DAY else exploring) * times // _EVERY_DAY
