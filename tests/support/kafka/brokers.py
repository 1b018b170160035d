"""Three brokers: made whole again, and who coordinates a group."""

from __future__ import annotations

import psutil

from aioparallel.testing import LocalKafka
from tests.support.waiting import DEADLINE, until

__all__ = ["coordinator", "offsets_partition", "restore", "until_whole"]

_OFFSETS_PARTITIONS = 4
"""Of ``__consumer_offsets``; see aioparallel/testing/brokers/server_properties.py."""


def restore(kafka: LocalKafka) -> None:
    """Let paused brokers go on and killed ones come back."""
    for number, pid in kafka.pids.items():
        kafka.resume(number)
        if not psutil.pid_exists(pid):
            kafka.restart(number)


async def until_whole(kafka: LocalKafka, *topics: str) -> float:
    """Wait until all replicas of the topics are in sync; the seconds that took."""
    everyone = frozenset(kafka.numbers)

    async def whole() -> bool:
        return all([set((await kafka.in_sync(topic)).values()) == {everyone} for topic in topics])

    return await until(whole, DEADLINE, lambda: f"all in sync. {kafka.log_tail(10)}")


async def coordinator(kafka: LocalKafka, group: str) -> int:
    """The number of the broker that coordinates a group; 0 where there is none now."""
    return (await kafka.leaders("__consumer_offsets")).get(offsets_partition(group), 0)


def offsets_partition(group: str) -> int:
    """The partition of ``__consumer_offsets`` whose leader coordinates the group, by Java's hash of its name."""
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    return min(code, (1 << 32) - code) % _OFFSETS_PARTITIONS  # the absolute value of a signed number
