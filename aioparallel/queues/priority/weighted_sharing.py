"""The extension that shares a consumer among priorities."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.engine.schedule.counters import Counters
from aioparallel.engine.schedule.fairness import WeightedFairQueue
from aioparallel.group.client import Client
from aioparallel.group.priorities import Priorities
from aioparallel.handlers.batches import BatchHandler
from aioparallel.handlers.stack import Handlers
from aioparallel.queues.priority.budget import PollBudget
from aioparallel.queues.priority.client import PriorityClient
from aioparallel.queues.priority.names import PriorityTopics, priority_group
from aioparallel.queues.priority.planner import PollPlanner
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Sharing"]


class Sharing(Extension):
    """Shares slots and fetches among priorities. ``weights``: of each priority, lowest first. ``ageing``: seconds."""

    _consumer: ConsumerContext

    def __init__(
        self, topics: PriorityTopics, budget: PollBudget, weights: Sequence[float], ageing: float, max_poll_records: int
    ) -> None:
        self._topics = topics
        self._budget = budget
        self._weights = weights
        self._ageing = ageing
        self._max_poll_records = max_poll_records

    def client(self, group_id: str, member_of: Callable[[str], Client]) -> Client:
        """Returns a client with a member for each priority, each in its own group."""
        priorities = range(len(self._weights))
        return self.client_of([member_of(priority_group(group_id, priority)) for priority in priorities])

    def client_of(self, clients: Sequence[Client]) -> PriorityClient:
        """Returns these clients as one."""
        return PriorityClient(clients, self._topics, self._budget)

    def attach(self, consumer: ConsumerContext) -> None:
        """Check the options. Raises ConfigurationError."""
        options = consumer.options
        if options.max_buffered < 2 * self._max_poll_records:
            raise ConfigurationError(
                "max_buffered",
                options.max_buffered,
                f"must be twice max_poll_records ({self._max_poll_records}), or more",
            )
        if options.failures.retry_topics:
            raise ConfigurationError("retry_topics", options.failures.retry_topics, "have no priority: leave them out")
        self._consumer = consumer

    def handlers(self, handlers: Handlers) -> Handlers:
        """Returns handlers by the topics of the priorities. A batch handler is copied for each priority, so that no
        batch has records of two."""
        logical = self._topics.logical
        if isinstance(handlers, Mapping):
            missing = sorted(set(logical) - set(handlers))
            if missing:
                raise ConfigurationError("handler", sorted(handlers), f"has none for topic {', '.join(missing)}")
        elif not isinstance(handlers, BatchHandler):
            return handlers
        by_topic: dict[str, Any] = {}
        for names in self._topics.of:
            copies: dict[int, Any] = {}
            for topic, name in zip(logical, names, strict=True):
                given = handlers[topic] if isinstance(handlers, Mapping) else handlers
                if id(given) not in copies:
                    copies[id(given)] = copy.copy(given) if isinstance(given, BatchHandler) else given
                by_topic[name] = copies[id(given)]
        return by_topic

    def priorities(self) -> Priorities:
        """Returns how slots and fetches are shared. The name of a topic contains its priority."""
        client = cast("PriorityClient", self._consumer.client)
        return Priorities(
            turns=self._turns,
            rank_of=self._rank_of,
            planner=partial(PollPlanner, client=client, budget=self._budget, weights=self._weights),
            is_whole=client.is_whole,
        )

    def _turns(self, slots: int, counters: Counters) -> WeightedFairQueue:
        heaviest = max(self._weights)  # becomes 1: starts are divided by weights, which must not be tiny
        weights = [weight / heaviest for weight in self._weights]
        return WeightedFairQueue(slots, counters, weights, self._ageing, asyncio.get_running_loop().time)

    def _rank_of(self, partition: TopicPartition) -> int:
        return self._topics.priority(partition.topic)
