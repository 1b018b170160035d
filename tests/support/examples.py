"""How many examples a property test runs, where hypothesis' own hundred are too many or too few."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(count: int) -> int:
    """``count`` in the tests of every day, and as many times more as the profile in use runs more than 100."""
    return count * settings().max_examples // 100
