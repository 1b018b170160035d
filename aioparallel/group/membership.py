"""What a consumer needs of its member of a group, and of a run. The usual member is one of a consumer group."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aioparallel.config.options import Options
from aioparallel.engine.sinks import DeadLetterSink, OutputSink
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.group.client import Client
from aioparallel.group.extensions import Extensions
from aioparallel.group.run import GroupRun
from aioparallel.group.run_state import RunState
from aioparallel.handlers.stack import Stack
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs, Contact, Stats
from aioparallel.records.errors import ClientError
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.skipped import Skipped

__all__ = ["GroupMembership", "Membership", "Run", "RunParts"]


class Run(Protocol):
    """From records that are read to records that have ended. It follows the state that the consumer writes."""

    async def run(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Run until a stop is requested, the end is reached, or a failure, which is raised. After a stop everything is
        settled when this returns. After a failure or a cancellation nothing new starts, and :meth:`close` settles the
        rest."""

    def follow(self) -> None:
        """Start records, or start no more, after the state has changed."""

    def fail(self, error: BaseException) -> None:
        """End the run, which raises this error. A later one is logged."""

    async def close(self) -> None:
        """Settle, then end every coroutine of the run."""

    async def commit_now(self) -> None:
        """See ``ParallelConsumer.commit_now()``."""

    async def skip(self, partition: TopicPartition, offsets: Sequence[int], *, dry_run: bool) -> list[Skipped]:
        """See ``ParallelConsumer.skip()``."""

    def stats(self, outputs: Sequence[BrokerOutputs]) -> Stats:
        """Return a snapshot. ``outputs``: of the producer."""

    def problems(self, undelivered: Mapping[Record[Any, Any], str]) -> tuple[Problem, ...]:
        """Return all health problems. ``undelivered``: records that cannot be dead-lettered, and why."""

    @property
    def held(self) -> Collection[TopicPartition]:
        """The partitions that this member has."""

    @property
    def has_joined(self) -> bool:
        """Whether the group has sent an assignment, and all of it is read."""

    @property
    def left_behind(self) -> Sequence[LeftBehind]:
        """After :meth:`close`: handlers that still run."""


class RunParts(NamedTuple):
    """What a run is made of."""

    group_id: str
    options: Options
    stack: Stack
    """The functions that run records."""
    state: RunState
    """The phase, and what the user wants."""
    extensions: Extensions
    output_sink: OutputSink | None
    """Where outputs go."""
    dead_letter_sink: DeadLetterSink | None
    """Where records go that failed for good."""


class Membership(Protocol):
    """How a consumer is a member of its group: its connection, and its run."""

    has_own_client: bool
    """Whether the user has passed the client. Then he passes a producer as well, if one is needed."""

    async def start(self, timeout: float) -> None:
        """Connect. Raises BrokerUnreachable, NotAuthorized, ClientError within ``timeout`` seconds."""

    async def stop(self, timeout: float) -> None:
        """Leave the group and close all connections, within ``timeout`` seconds. Never raises. May be called even if
        :meth:`start` failed."""

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics. Raises TimeoutError."""

    async def look_up(self, partitions: Collection[TopicPartition]) -> None:
        """Ask the cluster for what the run needs, right before it is made. ``partitions``: of the topics that are read.
        Raises ClientError."""

    def run(self, parts: RunParts) -> Run:
        """Make the run. Called once, within the running loop."""

    def contact(self) -> Contact:
        """Return which brokers and partitions can be reached. May be called at any time."""

    @property
    def client(self) -> Client | None:
        """The client that extensions use; None: this is no member of a consumer group."""


class GroupMembership:
    """A member of a consumer group. ``servers``: for messages."""

    def __init__(self, client: Client, servers: str, options: Options, *, has_own_client: bool) -> None:
        self.client: Client = client
        self.has_own_client = has_own_client
        self._servers = servers
        self._options = options
        self._targets: Mapping[TopicPartition, int] | None = None

    async def start(self, timeout: float) -> None:
        """Connect."""
        await self.client.start(timeout)

    async def stop(self, timeout: float) -> None:
        """Leave the group and close all connections."""
        await self.client.stop(timeout)

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics."""
        return await self.client.partitions(topics, timeout)

    def contact(self) -> Contact:
        """Return which brokers and partitions can be reached."""
        return self.client.contact()

    async def look_up(self, partitions: Collection[TopicPartition]) -> None:
        """With ``until="end"``, ask where the partitions end. Raises ClientError."""
        timeout = self._options.connect_timeout
        if self._options.until is None:
            return
        try:
            self._targets = await self.client.end_offsets(partitions, timeout)
        except TimeoutError as error:
            raise ClientError(
                f"the brokers at {self._servers} did not return the end offsets within {timeout:g} s, which "
                "until='end' needs"
            ) from error

    def run(self, parts: RunParts) -> GroupRun:
        """Make the run."""
        return GroupRun(
            self.client,
            parts.group_id,
            parts.options,
            parts.stack,
            parts.state,
            parts.extensions,
            self._targets,
            parts.output_sink,
            parts.dead_letter_sink,
        )
