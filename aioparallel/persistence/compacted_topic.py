"""Compacted topics that extensions keep their data in. Shared by ``state`` and ``dedup``.

Partition *n* holds the data of partition *n* of each input topic.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aioparallel.group.client import Client
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["CompactedTopic", "read_key", "unsaved_problems"]

_REPORTED: Final = 10
"""Unsaved partitions that are reported one by one."""


class CompactedTopic:
    """One topic. ``option``: its name in errors. ``data``: what it holds. ``hint``: appended to an error about missing
    partitions."""

    def __init__(self, name: str, option: str, data: str, client: Client, hint: str = "") -> None:
        self.name = name
        self._option = option
        self._data = data
        self._client = client
        self._hint = hint
        self._partitions = 0

    async def check_policy(self, timeout: float) -> None:
        """Check that the topic is compacted. Raises ConfigurationError."""
        policy = await self._client.cleanup_policy(self.name, timeout)
        if policy is not None and policy != "compact":
            raise ConfigurationError(
                self._option,
                self.name,
                f"must be compacted, and its cleanup.policy is {policy}: it would grow with every commit, or lose the "
                f"{self._data}. kafka-configs.sh --alter --entity-type topics --entity-name {self.name} --add-config "
                "cleanup.policy=compact --bootstrap-server ...",
            )

    async def count(self, timeout: float) -> int:
        """Look up and return how many partitions the topic has."""
        self._partitions = len(await self._client.partitions([self.name], timeout))
        return self._partitions

    async def check_partitions(self, read: Iterable[TopicPartition], timeout: float) -> None:
        """Check that the topic has a partition for each of these, which may be new. Raises ConfigurationError."""
        needed = 1 + max((partition.partition for partition in read), default=-1)
        if needed <= self._partitions or needed <= await self.count(timeout):
            return
        has = f"has {self._partitions} partitions" if self._partitions else "does not exist"
        make = "--alter" if self._partitions else "--create --config cleanup.policy=compact"
        raise ConfigurationError(
            self._option,
            self.name,
            f"{has}, and an input topic has {needed}: the {self._data} of a partition is stored in the partition of "
            f"its number. kafka-topics.sh {make} --topic {self.name} --partitions {needed} --bootstrap-server ..."
            f"{self._hint}",
        )


def read_key(data: bytes | None) -> Any:
    """Returns the JSON in the key of a record; None if it is not JSON."""
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError):
        return None


def unsaved_problems(kind: ProblemKind, what: str, reasons: Mapping[TopicPartition, str]) -> list[Problem]:
    """Returns the health problems of partitions that are not saved. ``what``: what is not saved, and where."""
    found = [
        Problem(kind, f"{partition}: {what}: {reason}")
        for partition, reason in itertools.islice(reasons.items(), _REPORTED)
    ]
    if len(reasons) > _REPORTED:
        found.append(Problem(kind, f"and {len(reasons) - _REPORTED} more partitions"))
    return found
