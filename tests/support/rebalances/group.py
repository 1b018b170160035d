"""A group whose members, all in this process, come and go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from aioparallel import Extension, ParallelConsumer, Record
from aioparallel.group.assignment import Assignment
from aioparallel.records.errors import ConsumerStateError
from aioparallel.testing.event_log import EventKind, EventLog, read_events
from tests.support.rebalances.pauses import Handling, Taken

__all__ = ["Group", "Loss", "noting_losses"]

_END: Final = 90.0
"""Seconds for members to leave."""
_SESSION: Final = "partitions_lost"
_LOSSES: Final = frozenset({_SESSION, "settle_uncommitted"})
"""Log actions after which records may run again."""

_running: Final[ContextVar[Group]] = ContextVar("_running")
"""The group that a task works for."""


class Loss(NamedTuple):
    """A member lost partitions, with its session or by giving them away without a commit. ``at``: CLOCK_MONOTONIC,
    seconds."""

    at: float
    is_session: bool
    what: str


@dataclass
class _Member:
    consumer: ParallelConsumer[bytes | None, bytes]
    task: asyncio.Task[None]


class Group:
    """Reads a topic of :class:`SteadyLoad`. An async context manager, which ends its members.

    ``handled``: numbers of the records whose handler has ended, with their partitions. ``losses``: by all
    members, see :func:`noting_losses`. ``taken``: each assignment of a partition to a member.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        group_id: str,
        protocol: Literal["classic", "consumer"],
        directory: Path,
    ) -> None:
        self.group_id = group_id
        self.handled: set[tuple[int, int]] = set()
        self.losses: list[Loss] = []
        self.taken: list[Taken] = []
        self.members: list[_Member] = []
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._protocol = protocol
        self._directory = directory
        self._leaving: list[asyncio.Task[None]] = []
        self._logs: list[Path] = []

    # -- members

    def join(self) -> None:
        """One more member. Does not wait until it has joined."""
        consumer = ParallelConsumer[bytes | None, bytes](
            self._topic,
            bootstrap_servers=self._servers,
            group_id=self.group_id,
            group_protocol=self._protocol,
            max_concurrency=100,
            extensions=[_Taking(self, len(self._logs))],
        )
        path = self._directory / f"{self.group_id}-{len(self._logs)}.events"
        self._logs.append(path)
        self.members.append(_Member(consumer, asyncio.create_task(self._run(consumer, path))))

    def leave(self, number: int) -> None:
        """The member with this place in ``members`` leaves. Does not wait for that."""
        member = self.members.pop(number)
        member.consumer.stop()
        self._leaving.append(member.task)

    async def end(self) -> None:
        """All leave, and have left. Raises what a member has raised."""
        while self.members:
            self.leave(0)
        async with asyncio.timeout(_END):
            await asyncio.gather(*self._leaving)

    def check(self) -> None:
        """Raises AssertionError, or what a member has raised, if one has ended by itself."""
        for member in self.members:
            assert not member.task.done() or member.task.result(), f"a member of {self.group_id} has ended"

    async def _run(self, consumer: ParallelConsumer[bytes | None, bytes], path: Path) -> None:
        _running.set(self)
        with EventLog(path, times=True, room=1 << 16) as log:

            async def handle(record: Record[bytes | None, bytes]) -> None:
                number = int(record.value)
                log.began(record.partition, number)
                try:
                    await asyncio.sleep(random.uniform(0.0, 0.05))
                except BaseException:
                    log.failed(record.partition, number)
                    raise
                log.ended(record.partition, number)
                self.handled.add((record.partition, number))

            async with consumer:
                await consumer.run(handle)

    # -- what they have

    def owned(self) -> list[set[int]]:
        """The partitions that each member reads now."""
        self.check()
        found: list[set[int]] = []
        for member in self.members:
            with contextlib.suppress(ConsumerStateError):  # not running yet
                stats = member.consumer.stats()
                found.append({one.partition for one in stats.partitions if one.state == "open"})
        return found

    def is_settled(self) -> bool:
        """Whether the partitions are evenly distributed, and each is read."""
        sizes = [len(one) for one in self.owned()]
        every = set[int]().union(*self.owned())
        is_even = len(sizes) == len(self.members) and max(sizes) - min(sizes) <= 1
        return is_even and len(every) == sum(sizes) == self._partitions

    def handlings(self) -> list[Handling]:
        """All that the members did so far, in order of its begin."""
        found: list[Handling] = []
        for member, path in enumerate(self._logs):
            began: dict[tuple[int, int], int] = {}
            for kind, partition, number, at in read_events(path):
                if kind is EventKind.BEGAN:
                    began[partition, number] = at
                else:
                    start = began.pop((partition, number)) / 1e9
                    found.append(Handling(start, at / 1e9, member, partition, number, kind is EventKind.ENDED))
        return sorted(found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*(member.task for member in self.members), *self._leaving):
            task.cancel()


class _Taking(Extension):
    """Notes what a member is assigned."""

    def __init__(self, group: Group, member: int) -> None:
        self._group = group
        self._member = member

    def assigned(self, assignment: Assignment) -> None:
        self._group.taken.append(Taken(assignment.partition.partition, time.monotonic(), self._member))


class _Losses(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        action = getattr(record, "action", None)
        if action in _LOSSES and (group := _running.get(None)) is not None:
            group.losses.append(Loss(time.monotonic(), action == _SESSION, record.getMessage()))


@contextlib.contextmanager
def noting_losses() -> Iterator[None]:
    """Fill ``losses`` of all groups from the log."""
    logger, handler = logging.getLogger("aioparallel"), _Losses()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
