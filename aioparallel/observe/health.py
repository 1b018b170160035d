"""What is wrong with a running consumer, in words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Health", "Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that somebody should look at."""

    kind: str
    """"failed", "producer_unreachable", "broker_silent", "handler_stuck", "max_parked", "dead_letter_failed",
    "map_cut", "commit_refused" or "fenced"."""
    message: str
    """What it is, with topic, partition and offset."""


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot."""

    running: bool
    """Whether records are read and run."""
    problems: tuple[Problem, ...]

    @property
    def healthy(self) -> bool:
        """Running, and nothing to look at."""
        return self.running and not self.problems
