"""One client made of several: a member of one group for each priority."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aioparallel.group.client import Client, CommitFault, Committed, Fetched, Generation, RebalanceListener, Span
from aioparallel.observe.stats import BrokerContact, Contact
from aioparallel.queues.priority.budget import PollBudget
from aioparallel.queues.priority.names import PriorityTopics
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition

__all__ = ["PriorityClient"]

T = TypeVar("T")


class PriorityClient:
    """The :class:`~aioparallel.group.client.Client` of a run that reads all priorities.

    A fetch is a *poll*: it asks all of them at once, within the limits of :meth:`next_poll`, and tells the budget what
    each has brought. Each group is rebalanced by itself.
    """

    def __init__(self, clients: Sequence[Client], topics: PriorityTopics, budget: PollBudget) -> None:
        self._clients = list(clients)
        self._topics = topics
        self._budget = budget
        self._limits: Sequence[int | None] = [0] * len(self._clients)
        # What a fetch has taken and not given, for it was cancelled; and what went wrong beside what it has given.
        self._brought: list[Fetched] = []
        self._failures: list[BaseException] = []
        self._waiting = set(range(len(self._clients)))  # priorities whose group has told no assignment

    # -- life -------------------------------------------------------------------------------------------

    async def start(self, timeout: float) -> None:
        """See :class:`~aioparallel.group.client.Client`."""
        await _together([client.start(timeout) for client in self._clients])

    async def stop(self, timeout: float) -> None:
        """See :class:`~aioparallel.group.client.Client`."""
        await asyncio.gather(*[client.stop(timeout) for client in self._clients])

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """See :class:`~aioparallel.group.client.Client`. ``topics``: those of the priorities, whatever is said here."""
        for priority, client in enumerate(self._clients):
            client.subscribe(self._topics.of[priority], _Listener(priority, listener, self._waiting))

    def is_whole(self) -> bool:
        """Whether every group has told what is assigned, and joins not again."""
        return not self._waiting

    # -- polls ------------------------------------------------------------------------------------------

    def next_poll(self, limits: Sequence[int | None]) -> None:
        """The next fetch brings so many records of each priority at most. None: no more, for it has enough."""
        self._limits = limits

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """See :class:`~aioparallel.group.client.Client`."""
        if not self._brought:
            if self._failures:
                raise self._failures.pop(0)
            await self._poll(quotas, most)
        if not self._brought and self._failures:
            raise self._failures.pop(0)
        brought, self._brought = self._brought, []
        return brought

    async def _poll(self, quotas: Mapping[TopicPartition, int], most: int) -> None:
        parts: list[dict[TopicPartition, int]] = [{} for _ in self._clients]
        for partition, quota in quotas.items():
            parts[self._topics.priority(partition.topic)][partition] = quota
        limits, asked = self._limits, [0] * len(parts)
        for priority in reversed(range(len(parts))):
            asked[priority] = min(most, limits[priority] or 0, sum(parts[priority].values()))
            most -= asked[priority]
        fetches = [
            asyncio.ensure_future(client.fetch(part if limit else {}, limit))
            for client, part, limit in zip(self._clients, parts, asked, strict=True)
        ]
        try:
            await asyncio.wait(fetches, return_when=asyncio.FIRST_COMPLETED)
            for client, fetch in zip(self._clients, fetches, strict=True):
                if not fetch.done():
                    client.wake()
            await asyncio.wait(fetches)
        except asyncio.CancelledError:
            for fetch in fetches:
                fetch.cancel()  # which loses nothing
            await asyncio.wait(fetches)
            raise
        finally:
            brought = [self._keep(client, fetch) for client, fetch in zip(self._clients, fetches, strict=True)]
        if any(count for count, _ in brought):
            self._budget.polled([_used(*one) for one in zip(brought, asked, limits, self._budget.parts, strict=True)])

    def _keep(self, client: Client, fetch: asyncio.Future[list[Fetched]]) -> tuple[int, bool]:
        """Keep what it has brought, or raised. Returns how many records, and whether their logs hold more."""
        if not fetch.done() or fetch.cancelled():
            return 0, False
        failure = fetch.exception()
        if failure is not None:
            self._failures.append(failure)
            return 0, False
        found = fetch.result()
        self._brought += found
        has_more = any((client.end_offset_seen(one.partition) or 0) > one.next_offset for one in found)
        return sum(len(one.records) for one in found), has_more

    def wake(self) -> None:
        """See :class:`~aioparallel.group.client.Client`."""
        self._clients[0].wake()  # whose fetch ends that of the others

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See :class:`~aioparallel.group.client.Client`."""
        self._brought = [one for one in self._brought if one.partition != partition]
        self._of(partition).seek(partition, offset)

    # -- groups -----------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`~aioparallel.group.client.Client`."""
        client = self._clients[int(generation.group)]
        return await client.commit(offsets, generation._replace(group=""), timeout)

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """See :class:`~aioparallel.group.client.Client`."""
        client = self._clients[int(generation.group)]
        client.fenced(generation._replace(group=""), instance_fenced=instance_fenced)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """See :class:`~aioparallel.group.client.Client`."""
        parts: dict[Client, list[TopicPartition]] = {}
        for partition in partitions:
            parts.setdefault(self._of(partition), []).append(partition)
        found = await _together([client.committed(part, timeout) for client, part in parts.items()])
        return {partition: committed for one in found for partition, committed in one.items()}

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`. Each client knows the leaders of its own topic alone."""
        parts: dict[Client, dict[TopicPartition, int]] = {}
        for partition, epoch in epochs.items():
            parts.setdefault(self._of(partition), {})[partition] = epoch
        found = await _together([client.valid_ends(part, timeout) for client, part in parts.items()])
        return {partition: end for one in found for partition, end in one.items()}

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """See :class:`~aioparallel.group.client.Client`."""
        return self._of(partition).end_offset_seen(partition)

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """See :class:`~aioparallel.group.client.Client`."""
        return self._of(partition).written_end_seen(partition)

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """See :class:`~aioparallel.group.client.Client`."""
        return self._of(partition).since_end_seen(partition)

    def contact(self) -> Contact:
        """See :class:`~aioparallel.group.client.Client`: what is heard by the one that hears least."""
        contacts = [client.contact() for client in self._clients]
        brokers: dict[int | None, BrokerContact] = {}
        for broker in [broker for contact in contacts for broker in contact.brokers]:
            known = brokers.get(broker.broker)
            if known is None or (broker.owes or 0.0) > (known.owes or 0.0):
                brokers[broker.broker] = broker
        return Contact(
            fetch=_longest(contact.fetch for contact in contacts),
            heartbeat=_longest(contact.heartbeat for contact in contacts),
            commit=_longest(contact.commit for contact in contacts),
            brokers=tuple(brokers.values()),
            leaderless=tuple(partition for contact in contacts for partition in contact.leaderless),
            missing=tuple(topic for contact in contacts for topic in contact.missing),
        )

    def _of(self, partition: TopicPartition) -> Client:
        return self._clients[self._topics.priority(partition.topic)]

    # -- the cluster, which looks the same to all -------------------------------------------------------

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].partitions(topics, timeout)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].beginning_offsets(partitions, timeout)

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].end_offsets(partitions, timeout)

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].written_end_offsets(partitions, timeout)

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].topic_ids(topics, timeout)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].offsets_for_times(times, timeout)

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """See :class:`~aioparallel.group.client.Client`."""
        return await self._clients[0].cleanup_policy(topic, timeout)

    def read(self, spans: Mapping[TopicPartition, Span | list[Span]]) -> AsyncGenerator[Fetched, None]:
        """See :class:`~aioparallel.group.client.Client`."""
        return self._clients[0].read(spans)


class _Listener:
    """Hears of one group, and tells the run."""

    def __init__(self, priority: int, listener: RebalanceListener, waiting: set[int]) -> None:
        self._priority = priority
        self._listener = listener
        self._waiting = waiting  # one set for all

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """See :class:`~aioparallel.group.client.RebalanceListener`."""
        self._waiting.discard(self._priority)
        self._listener.assigned(partitions, generation._replace(group=str(self._priority)))

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """See :class:`~aioparallel.group.client.RebalanceListener`."""
        self._waiting.add(self._priority)
        await self._listener.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """See :class:`~aioparallel.group.client.RebalanceListener`."""
        self._waiting.add(self._priority)
        self._listener.lost(partitions)

    def fenced(self, error: InstanceFenced) -> None:
        """See :class:`~aioparallel.group.client.RebalanceListener`. It ends the run, with all its groups."""
        self._waiting.add(self._priority)
        self._listener.fenced(error)


def _used(brought: tuple[int, bool], asked: int, limit: int | None, part: int) -> int:
    """Records that this priority has used of its part: all, where there is more than it has asked for, or than its
    client takes at once from a partition."""
    count, has_more = brought
    if limit is None or has_more or (asked and count >= asked):
        return max(count, part)
    return count


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((one for one in seconds if one is not None), default=None)


async def _together(works: Collection[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them at once; what the first to fail raises."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__  # it goes on as if it had been the only one
    return [task.result() for task in tasks]
