"""Our consumer in these tests: some records never succeed, and every call of the handler is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any, Literal, Unpack

from aioparallel import ParallelConsumer, Record
from aioparallel.config.options import OptionFields
from aioparallel.config.policies import FailurePolicy, RetryPolicy
from tests.support.interop.group import Group, Place

__all__ = ["OurConsumer", "run_to_the_end"]

How = Literal["raises", "waits"]
_END_TIMEOUT = 120.0


class Stuck(Exception):
    """What the handler of a stuck record raises."""


class OurConsumer:
    """Runs as a task of its own from ``async with`` on; at the end it is stopped without a drain.

    ``ran`` and ``stuck`` count the calls of the handler for records that succeed and for those that never do: they
    raise once, as their retry is an hour away, or wait for ever.
    """

    def __init__(
        self, group: Group, stuck: Collection[Place] = (), how: How = "raises", **options: Unpack[OptionFields]
    ) -> None:
        self.ran: Counter[Place] = Counter()
        self.stuck: Counter[Place] = Counter()
        self._never = frozenset(stuck)
        self._how = how
        settings: OptionFields = {
            "max_buffered": 50_000,
            "max_parked": 50_000,
            "commit_interval": 0.1,
            "failures": FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600)),
            "session_timeout": 6.0,
            "heartbeat_interval": 0.5,
            **options,
        }
        self.consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
            group.topic, bootstrap_servers=group.bootstrap_servers, group_id=group.name, **settings
        )
        self._running: asyncio.Task[None] | None = None

    async def handle(self, record: Record) -> None:
        """The handler."""
        place = Place(record.partition, record.offset)
        if place not in self._never:
            self.ran[place] += 1
            return
        self.stuck[place] += 1
        if self._how == "waits":
            await asyncio.Event().wait()
        raise Stuck

    async def __aenter__(self) -> OurConsumer:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.consumer.stop(drain=False)
        assert self._running is not None
        await self._running

    def check(self) -> None:
        """Fail the test if it has ended by itself."""
        assert self._running is not None
        assert not self._running.done(), f"our consumer ended: {self._running!r}"

    async def _run(self) -> None:
        async with self.consumer:
            await self.consumer.run(self.handle)


async def run_to_the_end(group: Group, **options: Unpack[OptionFields]) -> Counter[Place]:
    """Run our consumer until everything is complete and committed; what it ran."""
    settings: OptionFields = {**options, "until": "end"}
    ours = OurConsumer(group, **settings)
    async with asyncio.timeout(_END_TIMEOUT):
        async with ours.consumer:
            await ours.consumer.run(ours.handle)
    return ours.ran
