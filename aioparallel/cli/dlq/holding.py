"""Lets one process at a time settle letters of a topic: the member that the group has assigned the topic to.

Commands that settle letters join the group that keeps the marks. The assignor in this module gives each topic to one
member: a member that has it keeps it, and the others get nothing. Marks are committed under that member's generation,
so Kafka refuses those of any other process.

A group of the new protocol (KIP-848) accepts these commands as members, and its brokers assign: several members would
have parts of the topic. So an assignment counts only with the text of this assignor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import aiokafka.errors as kafka
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from aioparallel.cli.dlq.marks import MarksRefused
from aioparallel.group.client import Client, Generation
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition

__all__ = ["HEARTBEAT_INTERVAL", "REBALANCE_TIMEOUT", "SESSION_TIMEOUT", "Hold"]

SESSION_TIMEOUT: Final = 6.0
"""Seconds until the group removes a process that was killed: the shortest that brokers accept by default."""
HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds; also how long another command waits for the answer that it gets nothing."""
REBALANCE_TIMEOUT: Final = 10.0
_ASSIGNED: Final = b"aioparallel-dlq"
"""User data of each assignment by this assignor."""
TAKE_TIMEOUT: Final = 30.0
"""Seconds; brokers wait 3 s for more members after the first join, and longer for the others' rebalance."""


class Hold:
    """This process's membership in the group, and so its right to settle letters of one topic."""

    def __init__(self, topic: str, group: str) -> None:
        self.claim: str | None = None
        """The member id under which this process was assigned its topic; it tells the other members.

        A member that the group has removed joins again with another id. Its claim is void then, whether it knows that
        or not, as another process may have had the topic meanwhile.
        """
        self.assignor = _assignor(self)
        """For the client's ``partition_assignment_strategy``."""
        self.is_assigned_by_members = False
        """Whether the last assignment is by a member with this assignor, not by the brokers."""
        self._topic = topic
        self._group = group
        self._generation: Generation | None = None
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def take(self, client: Client) -> None:
        """Join with a started client that has :attr:`assignor`.

        Raises MarksRefused if another process has the topic or the group has other members; NotAuthorized, ClientError.
        """
        self._listening = asyncio.create_task(self._listen(client))
        client.subscribe([self._topic], self)
        await self.generation(TAKE_TIMEOUT)

    async def generation(self, timeout: float) -> Generation:
        """The generation to commit under; waits while the group rebalances. Raises MarksRefused without the right."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._generation is None and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if self._generation is None:
            raise MarksRefused(f"group {self._group!r} did not stabilise within {timeout:g} s; is the cluster healthy?")
        return self._generation

    async def release(self) -> None:
        """Stop listening; the client leaves the group when it stops."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """Called by the client after a rebalance."""
        if not self.is_assigned_by_members:
            self._refuse(self._others())
        elif self.claim not in (None, generation.member_id):
            self.lost(partitions)
        elif partitions:
            self._generation, self.claim = generation, generation.member_id
        else:
            self._refuse(
                f"another replay or drop of {self._topic} is running in group {self._group!r}; nothing was done. "
                "Run it again when that one has ended"
            )
        self._changed.set()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """A rebalance begins; the partitions come back after it."""
        self._generation = None

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """The group has removed this member, so another process may have the topic."""
        self._refuse(
            f"the membership in group {self._group!r} is lost: this process was blocked for {SESSION_TIMEOUT:g} s, or "
            "the cluster did not answer. What was settled so far stays settled"
        )

    def fenced(self, error: InstanceFenced) -> None:
        """Cannot happen, as this member has no ``group_instance_id``."""
        self._fail(error)

    def _refuse(self, reason: str) -> None:
        self._fail(MarksRefused(reason))

    def _fail(self, failure: Exception) -> None:
        self._generation = None
        self._failure = self._failure or failure
        self._changed.set()

    async def _listen(self, client: Client) -> None:
        """The client reports here if the group refuses this member. Nothing is fetched."""
        try:
            while True:
                await client.fetch({})
        except Exception as error:
            if isinstance(error.__cause__, kafka.InconsistentGroupProtocolError):
                self._refuse(self._others())
            self._fail(error)

    def _others(self) -> str:
        return (
            f"group {self._group!r} has other consumers as members; stop them, or choose another --group that no "
            "consumer uses"
        )


def _assignor(hold: Hold) -> type[AbstractPartitionAssignor]:
    """An assignor that gives each topic to one member: the one that claims it, else the first by name.

    Returns a new class for each client, as aiokafka does not instantiate assignors.
    """

    class OneHolder(AbstractPartitionAssignor):  # type: ignore[misc]
        name = "aioparallel-dlq"

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            given: dict[str, list[tuple[str, list[int]]]] = {name: [] for name in members}
            for topic in {topic for member in members.values() for topic in member.subscription}:
                wanting = {name: member for name, member in members.items() if topic in member.subscription}
                holder = min(wanting, key=lambda name: (wanting[name].user_data != name.encode(), name))
                given[holder].append((topic, sorted(cluster.partitions_for_topic(topic) or ())))
            return {name: ConsumerProtocolMemberAssignment(0, topics, _ASSIGNED) for name, topics in given.items()}

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(0, list(topics), (hold.claim or "").encode())

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            hold.is_assigned_by_members = assignment.user_data == _ASSIGNED

    return OneHolder
