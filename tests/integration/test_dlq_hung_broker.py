"""``aioparallel dlq`` while one of three brokers hangs (SIGSTOP): the one that stands first in the bootstrap list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from aioparallel.testing import LocalKafka

from .dead_letters import Letters, Sent

pytestmark = pytest.mark.real


@pytest.fixture
def letters(kafka_cluster: LocalKafka) -> Iterator[Letters]:
    """Three letters in three partitions, one of them led by each broker, of which the first one hangs."""
    letters = Letters(kafka_cluster, partitions=3)
    letters.write(*(Sent(b"%d" % number, partition=number) for number in range(3)))
    assert len(letters.listed()) == 3  # a new cluster makes the groups' topic for the first of them
    kafka_cluster.pause(1)
    try:
        yield letters
    finally:
        kafka_cluster.resume(1)
        asyncio.run(kafka_cluster.create_topic(f"{letters.name}-end", 3))  # all of them are in sync again


def test_list_and_replay(letters: Letters) -> None:
    """Each within 25 seconds, though the hung broker is asked first and led a partition of letters, perhaps the group
    as well: the others elect new leaders."""
    began = time.monotonic()
    assert sorted(letters.listed()) == [(0, 0), (1, 0), (2, 0)]
    listed = time.monotonic()
    assert listed - began < 25
    _, said = letters.run("replay", "--yes")
    assert "Replayed 3, failed 0" in said
    assert time.monotonic() - listed < 25
