"""Topics in the tests of Spark."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.kafka.filling import Message

__all__ = ["NewTopic", "counted"]

NewTopic = Callable[..., str]
"""``new_topic(partitions)``: its name."""


def counted(count: int, keys: int = 20) -> list[Message]:
    """Values ``{"n": 0}`` and up; every second one has a header."""
    headers = [[("trace", b"t%d" % n)] if n % 2 else [] for n in range(count)]
    return [Message(b"key-%d" % (n % keys), b'{"n": %d}' % n, headers[n]) for n in range(count)]
