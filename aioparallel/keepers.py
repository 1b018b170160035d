"""Positions that are kept elsewhere than in the group: what a consumer asks of whoever does."""

from __future__ import annotations

from typing import Protocol

from aioparallel.delivery.producer import Producer
from aioparallel.group.committing import Keeping, Member
from aioparallel.options import KeepsPositions, Options

__all__ = ["PositionKeeper"]


class PositionKeeper(KeepsPositions, Protocol):
    """The consumer's option ``commits``, where that is not Kafka's transactions. One for each consumer."""

    def bind(self, producer: Producer | None, options: Options) -> None:
        """It is this consumer's from now on. ``producer``: for what handlers let leave. Raises ConfigurationError."""

    async def check(self, timeout: float) -> None:
        """See that it can be used, within ``timeout`` seconds. Raises ClientError, TimeoutError."""

    async def close(self) -> None:
        """Nothing more is asked, after the last drain. What is its own is closed."""

    def keeping(self, member: Member, group_id: str) -> Keeping:
        """For one run, within its event loop."""
