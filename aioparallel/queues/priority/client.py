"""Combines the clients of all priorities, each a member of its own group, into one client."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aioparallel.group.client import Client, CommitFault, Committed, Fetched, Generation, RebalanceListener
from aioparallel.observe.stats import BrokerContact, Contact
from aioparallel.queues.priority.budget import PollBudget
from aioparallel.queues.priority.names import PriorityTopics
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition

__all__ = ["PriorityClient"]

T = TypeVar("T")
V = TypeVar("V")


class PriorityClient:
    """A :class:`~aioparallel.group.client.Client` that reads all priorities.

    A fetch is a *poll*: it fetches from all clients at once, within the limits of :meth:`next_poll`, and reports to the
    budget what each returned. Each group rebalances by itself.
    """

    def __init__(self, clients: Sequence[Client], topics: PriorityTopics, budget: PollBudget) -> None:
        self._clients = list(clients)
        self._topics = topics
        self._budget = budget
        self._limits: Sequence[int | None] = [0] * len(self._clients)
        self._fetched: list[Fetched] = []  # taken from the clients and not returned, because the fetch was cancelled
        self._failures: list[BaseException] = []  # errors of fetches, raised once everything fetched is returned
        self._waiting = set(range(len(self._clients)))  # priorities whose group has not sent an assignment
        # The cluster is the same for all clients.
        one = self._clients[0]
        self.partitions = one.partitions
        self.beginning_offsets = one.beginning_offsets
        self.end_offsets = one.end_offsets
        self.written_end_offsets = one.written_end_offsets
        self.topic_ids = one.topic_ids
        self.offsets_for_times = one.offsets_for_times
        self.cleanup_policy = one.cleanup_policy
        self.read = one.read
        self.wake = one.wake  # when one fetch ends, the others are woken

    async def start(self, timeout: float) -> None:
        """Start all clients."""
        await _together([client.start(timeout) for client in self._clients])

    async def stop(self, timeout: float) -> None:
        """Stop all clients."""
        await asyncio.gather(*[client.stop(timeout) for client in self._clients])

    # -- polls ------------------------------------------------------------------------------------------

    def next_poll(self, limits: Sequence[int | None]) -> None:
        """Set the limit of each priority for the next fetch. None: fetch none, because enough are buffered."""
        self._limits = limits

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Fetch from all clients, or return what a cancelled fetch has left."""
        if not self._fetched:
            if self._failures:
                raise self._failures.pop(0)
            await self._poll(quotas, most)
        if not self._fetched and self._failures:
            raise self._failures.pop(0)
        fetched, self._fetched = self._fetched, []
        return fetched

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
                fetch.cancel()  # loses no records
            await asyncio.wait(fetches)
            raise
        finally:
            taken = [self._take(client, fetch) for client, fetch in zip(self._clients, fetches, strict=True)]
        if any(count for count, _ in taken):
            self._budget.polled([_used(*one) for one in zip(taken, asked, limits, self._budget.parts, strict=True)])

    def _take(self, client: Client, fetch: asyncio.Future[list[Fetched]]) -> tuple[int, bool]:
        """Keep the result of a fetch. Returns the number of records, and whether their logs hold more."""
        if not fetch.done() or fetch.cancelled():
            return 0, False
        failure = fetch.exception()
        if failure is not None:
            self._failures.append(failure)
            return 0, False
        found = fetch.result()
        self._fetched += found
        has_more = any((client.end_offset_seen(one.partition) or 0) > one.next_offset for one in found)
        return sum(len(one.records) for one in found), has_more

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Seek, and drop what was fetched from the partition."""
        self._fetched = [one for one in self._fetched if one.partition != partition]
        self._of(partition).seek(partition, offset)

    # -- groups -----------------------------------------------------------------------------------------

    @property
    def assigns_in_steps(self) -> bool:
        """Whether one of the groups may have more partitions for its client."""
        return any(client.assigns_in_steps for client in self._clients)

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Subscribe each client to the topics of its priority; ``topics`` is ignored."""
        for priority, client in enumerate(self._clients):
            client.subscribe(self._topics.of[priority], _Listener(priority, listener, self._waiting))

    def is_whole(self) -> bool:
        """Whether every group has sent an assignment and none is rejoining."""
        return not self._waiting

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Commit in the group of the generation."""
        client = self._clients[int(generation.group)]
        return await client.commit(offsets, generation._replace(group=""), timeout)

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """Tell the client of the generation."""
        client = self._clients[int(generation.group)]
        client.fenced(generation._replace(group=""), instance_fenced=instance_fenced)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """Read the committed offsets of each group."""
        parts = self._by_client(dict.fromkeys(partitions))
        return _merged(await _together([client.committed(part, timeout) for client, part in parts.items()]))

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Ask each client: it knows the leaders of its own topics only."""
        parts = self._by_client(epochs)
        return _merged(await _together([client.valid_ends(part, timeout) for client, part in parts.items()]))

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """Ask the client of the partition."""
        return self._of(partition).end_offset_seen(partition)

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """Ask the client of the partition."""
        return self._of(partition).written_end_seen(partition)

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Ask the client of the partition."""
        return self._of(partition).since_end_seen(partition)

    def contact(self) -> Contact:
        """Combine the contacts; the longest silence counts."""
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

    def _by_client(self, given: Mapping[TopicPartition, V]) -> dict[Client, dict[TopicPartition, V]]:
        parts: dict[Client, dict[TopicPartition, V]] = {}
        for partition, value in given.items():
            parts.setdefault(self._of(partition), {})[partition] = value
        return parts


class _Listener:
    """Passes on the rebalances of one group."""

    def __init__(self, priority: int, listener: RebalanceListener, waiting: set[int]) -> None:
        self._priority = priority
        self._listener = listener
        self._waiting = waiting  # shared by all listeners
        self._held: set[TopicPartition] = set()
        self._going: Collection[TopicPartition] = ()  # what ``revoked`` gives away now

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self._waiting.discard(self._priority)
        self._held.update(partitions)
        self._listener.assigned(partitions, generation._replace(group=str(self._priority)))

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._held.difference_update(partitions)
        if not self._held:
            self._waiting.add(self._priority)
        self._going = partitions
        try:
            await self._listener.revoked(partitions)
        finally:
            self._going = ()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._held.clear()
        self._waiting.add(self._priority)
        # With those that are being given away: without any, the listener would not know which group has lost them.
        self._listener.lost([*partitions, *self._going])

    def fenced(self, error: InstanceFenced) -> None:
        self._waiting.add(self._priority)
        self._listener.fenced(error)  # ends the run with all its groups


def _used(taken: tuple[int, bool], asked: int, limit: int | None, part: int) -> int:
    """Returns how many records of its share a priority has used: all of it if there are more than it has asked for, or
    than its client takes at once from a partition."""
    count, has_more = taken
    if limit is None or has_more or (asked and count >= asked):
        return max(count, part)
    return count


def _longest(seconds: Iterable[float | None]) -> float | None:
    return max((one for one in seconds if one is not None), default=None)


def _merged(found: Iterable[Mapping[TopicPartition, V]]) -> dict[TopicPartition, V]:
    return {partition: value for one in found for partition, value in one.items()}


async def _together(works: Collection[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all of them concurrently. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__  # as if it had been the only one
    return [task.result() for task in tasks]
