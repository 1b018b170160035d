"""What ``ParallelConsumer.skip()`` found."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["FoundAs", "Skipped"]

FoundAs = Literal["complete", "no record", "not read", "buffered", "parked", "in flight", "producing"]
"""Where a record is."""


class Skipped(NamedTuple):
    """One offset that was to be skipped.

    ``was``: where its record was then.

    * ``"complete"``: the offset was complete already, so nothing has changed.
    * ``"no record"``: the log has no record there (compacted, aborted, a marker), so nothing has changed.
    * ``"not read"``: the record was not fetched yet. It is left out when it comes.
    * ``"buffered"``: it had never started.
    * ``"parked"``: it waited for its next attempt.
    * ``"in flight"``: its handler, or that of its batch, was running.
    * ``"producing"``: its outputs, or its dead letter, were being sent.
    """

    offset: int
    was: FoundAs
    is_skipped: bool
    """False: it ended in another way, or nothing has changed. In a dry run: whether it would be skipped, as far as that
    is known."""
