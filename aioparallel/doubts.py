"""Whose fault it was that a batch has failed as a whole. Plain.

Each of its records may be the reason, or none of them: a service that is down fails all. Some run by themselves, to
tell. Where nothing but failures comes of it the service is down, and all go together again. Else those that fail alone
stay alone, and when as many as there should be have been tried the others go together again. If they fail again a bad
one is still among them, and twice as many are tried.

So one bad record among 500 costs as many calls as there are records at most, and an outage a few for each batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["Doubt"]

# Records that run by themselves when a batch has failed for the first time.
_TRIED: Final = 8
# So many failures and no success are an outage.
_OUTAGE: Final = 3
# Attempts of which the times are remembered.
_REMEMBERED: Final = 4


class Doubt:
    """Shared by the records of a call that has failed as a whole."""

    __slots__ = ("_failed", "_tried", "_untried", "anybody_well", "dues", "is_among_well")

    def __init__(self, tried: float = _TRIED) -> None:
        self._tried = self._untried = tried
        self._failed = 0
        self.anybody_well = False
        """Whether one of them has succeeded by itself: then nothing fails all of them."""
        self.is_among_well = False
        """Whether others that were with them have, so that one of these must be the reason."""
        self.dues: dict[int, float] = {}
        """When they run again, by number of the attempt; all at one time, or an outage would scatter them."""

    @classmethod
    def after(cls, before: Sequence[Doubt]) -> Doubt:
        """The next one, of records that were in these and have failed together again."""
        if not before:
            return cls()
        if not any(doubt.anybody_well for doubt in before):
            # The same, so that those that were tried belong to it, too.
            same = before[0]
            same._untried, same._failed = same._tried, 0
            same.dues = dict(sorted(same.dues.items())[-_REMEMBERED:])
            return same
        made = cls(max(doubt._tried * 2 if doubt.anybody_well else doubt._tried for doubt in before))
        made.is_among_well = True
        return made

    @classmethod
    def for_good(cls) -> Doubt:
        """Of a record whose patience would end for what others have failed with."""
        doubt = cls(math.inf)
        doubt.anybody_well = True
        return doubt

    @property
    def stands(self) -> bool:
        """Whether its records run by themselves."""
        return self._untried > 0 and (self.anybody_well or self._failed < _OUTAGE)

    def tried(self, well: bool) -> None:
        """One has run by itself."""
        self._untried -= 1
        if well:
            self.anybody_well = True
        else:
            self._failed += 1
