"""One command at a time settles letters of a topic: the one that the group has given the topic to.

The commands that settle letters join the group that keeps the marks. Its members agree, by the assignor here, that
each topic has one holder: who holds it keeps it, and the others are told that they have nothing. The marks are then
committed under the holder's generation, so that Kafka refuses those of anybody else.
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
from aioparallel.errors import InstanceFenced
from aioparallel.group.client import Client, Generation
from aioparallel.records import TopicPartition

__all__ = ["HEARTBEAT_INTERVAL", "REBALANCE_TIMEOUT", "SESSION_TIMEOUT", "Claim", "Hold", "one_holder"]

SESSION_TIMEOUT: Final = 6.0
"""Seconds until the group has forgotten a process that was killed: the shortest that brokers take by default."""
HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds; also how long another command waits until it is told that it has nothing."""
REBALANCE_TIMEOUT: Final = 10.0
TAKE_TIMEOUT: Final = 30.0
"""Seconds; brokers wait 3 s for more members when the first one joins, and up to the others' timeouts."""


class Claim:
    """What this process tells the other members: under which member id it was given its topic.

    The id, since a member that the group has forgotten comes back under another one: its claim is void then,
    whether it has noticed or not, for somebody else may have held the topic meanwhile.
    """

    member_id: str | None = None


class Hold:
    """The place of this process in the group, and with it the right to settle letters of one topic.

    ``client``: started, with :func:`one_holder` of the same ``claim`` as its assignor.
    """

    def __init__(self, client: Client, topic: str, group: str, claim: Claim) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._claim = claim
        self._generation: Generation | None = None
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Join. Raises MarksRefused when somebody else holds the topic, or the group has members of another kind;
        NotAuthorized and ClientError."""
        self._listening = asyncio.create_task(self._listen())
        self._client.subscribe([self._topic], self)
        await self.generation(TAKE_TIMEOUT)

    async def generation(self, timeout: float) -> Generation:
        """What to commit under, once the group is not moving. Raises MarksRefused when the right is gone, or was
        never given."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._generation is None and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if self._generation is None:
            raise MarksRefused(f"group {self._group!r} did not settle within {timeout:g} s; is the cluster healthy?")
        return self._generation

    async def release(self) -> None:
        """Hear no more of the group; leaving it is the client's to do."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    # -- what the group says

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """The members have agreed."""
        if self._claim.member_id not in (None, generation.member_id):
            self.lost(partitions)
        elif partitions:
            self._generation, self._claim.member_id = generation, generation.member_id
        else:
            self._refuse(
                f"another replay or drop of {self._topic} is at work in group {self._group!r}; nothing was done. "
                "Run it again when that one has ended"
            )
        self._changed.set()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The group agrees anew; what is held will be given back."""
        self._generation = None

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """The group has forgotten this member, and somebody else may hold the topic."""
        self._refuse(
            f"the place in group {self._group!r} is lost: this process stood still for {SESSION_TIMEOUT:g} s, or the "
            "cluster did not answer. What was settled so far stays settled"
        )

    def fenced(self, error: InstanceFenced) -> None:
        """Another one is this member; it has no ``group_instance_id``, so none can be."""
        self._fail(error)

    def _refuse(self, reason: str) -> None:
        self._fail(MarksRefused(reason))

    def _fail(self, failure: Exception) -> None:
        self._generation = None
        self._failure = self._failure or failure
        self._changed.set()

    async def _listen(self) -> None:
        """The client tells here that the group does not take this member. Nothing is fetched."""
        try:
            while True:
                await self._client.fetch({})
        except Exception as error:
            if isinstance(error.__cause__, kafka.InconsistentGroupProtocolError):
                self._refuse(
                    f"group {self._group!r}: it has members that consume with it now; stop them, or choose another "
                    "--group, one that nobody consumes with"
                )
            self._fail(error)


def one_holder(claim: Claim) -> type[AbstractPartitionAssignor]:
    """An assignor that gives each topic to one member: the one that says it holds it, else the first by name.

    A class of its own for each client, as aiokafka keeps no objects of them.
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
            return {name: ConsumerProtocolMemberAssignment(0, topics, b"") for name, topics in given.items()}

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(0, list(topics), (claim.member_id or "").encode())

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None: ...

    return OneHolder
