"""What the consumer written by hand commits."""

from __future__ import annotations

from aioparallel.cli.bench.recovery_consumer import Prefix


def test_a_prefix_ends_at_the_first_record_that_is_not_done() -> None:
    """Whatever is done above it; when it is done too, everything is."""
    assert Prefix().next is None
    prefix = Prefix()
    prefix.starts_at(5)
    for offset in (6, 8, 7):
        prefix.add(offset)
    assert prefix.next == 5
    prefix.starts_at(9)
    prefix.add(5)
    assert prefix.next == 9
