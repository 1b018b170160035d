"""What the answer to a produce request means for a batch."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Answer", "Verdict"]


class Verdict(enum.Enum):
    """What is to be done."""

    WRITTEN = "written"
    AGAIN = "again"
    """It passes by itself: send the same bytes again."""
    TOO_LARGE = "too large"
    """Not written: smaller batches may be, or a single output is too large for the topic."""
    SPLIT = "split"
    """Not written: one of the records is not acceptable, and the answer does not say which."""
    ANEW = "anew"
    """Not written: the sequence number is not the one that the broker waits for."""
    REJECTED = "rejected"
    """Not written: the broker takes nothing of this producer id any more."""
    REFUSED = "refused"
    """Not written, and it will not be."""
    UNCLEAR = "unclear"
    """It failed, and may be written all the same."""


class Answer(NamedTuple):
    """A verdict, with where the batch stands or why it does not."""

    verdict: Verdict
    reason: str = ""
    """May hold ``{size}``, the bytes of the batch."""
    offset: int = -1
    """Of the first record; -1 when the broker no longer knows."""
    timestamp: int = -1
    """Milliseconds since the epoch, -1 where the records keep their own."""
    is_heard: bool = True
    """Whether the broker has said it; False: no answer came."""

    def explain(self, size: int) -> str:
        """The reason, for a batch of this size in bytes."""
        return self.reason.format(size=size) if "{size" in self.reason else self.reason
