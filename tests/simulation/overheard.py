"""Between a member's client and its consumer: what the one hears and the other says is told to the truth as well."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from aioparallel.config.options import Options
from aioparallel.group.client import CommitFault, Committed, Fetched, Generation, RebalanceListener
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryClient

from .stage import GROUP
from .truth import Truth

if TYPE_CHECKING:
    from .members import Member

__all__ = ["WatchedClient"]

GRACE = 0.5  # seconds that cancelled handlers have to end when a partition is given away


class WatchedClient(InMemoryClient):
    """The client in memory, whose listener is heard by the truth as well."""

    def __init__(self, member: Member) -> None:
        plan = member.play.plan
        options = Options.of(plan.options)
        super().__init__(
            member.play.broker,
            GROUP,
            group_protocol=plan.group_protocol,
            cooperative=plan.cooperative,
            isolation_level="read_committed" if plan.read_committed else "read_uncommitted",
            session_timeout=options.session,
            heartbeat_interval=options.heartbeat,
            rebalance_timeout=options.rebalance_timeout,
        )
        self._member = member

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        super().subscribe(topics, Overheard(self._member, listener))

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        taken = await super().fetch(quotas, most)
        if taken:
            self._member.fetched(taken)
            if seconds := self._member.play.delay_of_a_fetch():
                await asyncio.sleep(seconds)  # what it brings may belong to an assignment of before
        return taken

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        tell, name = self._member.play.tell, self._member.name
        said = ", ".join(f"{p}@{c.offset}+{len(c.metadata)}" for p, c in offsets.items())
        tell(lambda: f"{name} commits {said} under {generation.id}")
        self._member.commits(offsets)
        results = await super().commit(offsets, generation, timeout)
        self._member.committed(results)
        faults = {str(p): fault.value for p, fault in results.items() if fault is not None}
        tell(lambda: f"{name} commit of {said}: {faults or 'taken'}")
        return results


class Overheard:
    """A listener between client and consumer."""

    def __init__(self, member: Member, listener: RebalanceListener) -> None:
        self._member = member
        self._truth: Truth = member.play.truth
        self._listener = listener

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self._truth.assigned(self._member.name, partitions)
        self._listener.assigned(partitions, generation)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._truth.leaving(self._member.name, partitions)
        loop = asyncio.get_running_loop()
        began = loop.time()
        how = "has been cut short giving away"
        try:
            await self._listener.revoked(partitions)
            how = "has given away"
        finally:
            self._truth.left(self._member.name, partitions, how)
            options = self._member.options
            took, bound = loop.time() - began, options.drain_timeout + GRACE + options.commit_timeout
            if took > bound + 0.1:
                self._truth.violated(f"{self._member.name} took {took:.3f} s to give away, not {bound:g}")

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._truth.left(self._member.name, partitions, "has lost")
        self._listener.lost(partitions)

    def fenced(self, error: InstanceFenced) -> None:
        self._truth.violated(f"{self._member.name} has no group_instance_id, and is fenced by one")
        self._listener.fenced(error)
