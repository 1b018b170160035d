"""PriorityConsumer: consumes records of several priorities, higher ones first."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Unpack

from aioparallel.config.callables import check_interface
from aioparallel.config.handling import check_count, check_time
from aioparallel.config.option_docs import takes_options
from aioparallel.config.options import Options, PlainFields, checked_extensions, checked_topics
from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client
from aioparallel.queues.priority.budget import PollBudget, exponential
from aioparallel.queues.priority.names import PriorityTopics, check_priorities
from aioparallel.queues.priority.weighted_sharing import Sharing
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import K_co, V_co

__all__ = ["PriorityConsumer"]

_LONGEST_HISTORY = 1_000_000
"""Polls. Each priority remembers one flag for each of them."""
_HEAVIEST = 1e100
"""Computations with weights, such as started records divided by a weight, stay within the range of a float."""


@takes_options(Options, without=("commits",))
class PriorityConsumer(ParallelConsumer[K_co, V_co]):
    """Consumes topics of several priorities.

    The topic "jobs" with three priorities is the topics ``jobs-0``, ``jobs-1`` and ``jobs-2``, the highest. Each
    priority has its own group, ``g-0`` and so on. All run in one engine.

    ::

        async with PriorityConsumer("jobs", priorities=3, bootstrap_servers="localhost:9092", group_id="g") as one:
            await one.run(work)

    While several priorities have records, each has twice the share of the one below it: of the handlers that run, of
    the buffer, and of each poll. Other priorities use what one leaves unused. So an urgent record starts at the next
    free slot, however many other records were read before it.

    ``topics``: logical names; the topics of all priorities must exist.
    ``group_id``: the logical group.
    ``priorities``: how many, 0 to ``priorities - 1``, the highest.
    ``max_poll_records``: records of all priorities in one poll; ``max_buffered`` must be at least twice that.
    ``history_window``, ``burst_threshold``: if at least ``burst_threshold`` of the last ``history_window`` polls of a
    priority were full, it may also read what the others used in none of them. Among several, the highest does.
    ``weights``: the share of each priority, lowest first, in place of 1, 2, 4, ...; any numbers above 0.
    ``ageing``: seconds. A priority that has records and has started none for so long gets the next turn, whatever its
    weight. At most one of eight turns is given this way. ``math.inf``: never.
    ``clients``: one for each priority, lowest first, in place of aiokafka's.

    All else is as in :class:`~aioparallel.ParallelConsumer`; keys are ordered within a priority. Handlers by topic use
    logical names. A batch has records of one priority. Topic patterns are refused, and so are retry topics, which have
    no priority. Topics, groups and shares are those of Flipkart's priority-kafka-client 1.0.0. Raises
    ConfigurationError.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        priorities: int,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        group_id: str,
        max_poll_records: int = 500,
        history_window: int = 6,
        burst_threshold: int = 4,
        weights: Sequence[float] | None = None,
        ageing: float = 10.0,
        clients: Sequence[Client] | None = None,
        producer: Producer | None = None,
        key_deserializer: Callable[[bytes], K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | None = None,
        **options: Unpack[PlainFields],
    ) -> None:
        check_priorities(priorities)
        names = checked_topics(topics)
        if isinstance(names, re.Pattern):
            raise ConfigurationError(
                "topics", topics, "must be names: the topics of the priorities are named after them"
            )
        if options.get("commits") is not None:
            raise ConfigurationError(
                "commits",
                options["commits"],
                "does not apply: a transaction is of one group, and each priority has its own; leave it out",
            )
        _check_polls(max_poll_records, history_window, burst_threshold, ageing)
        shares = _checked_weights(weights, priorities)
        budget = PollBudget(shares, max_poll_records, window=history_window, threshold=burst_threshold)
        if clients is not None:
            _check_clients(clients, priorities)
        priority_topics = PriorityTopics(names, priorities)
        sharing = Sharing(priority_topics, budget, shares, ageing, max_poll_records)
        options["extensions"] = (sharing, *checked_extensions(options.get("extensions", ())))
        self._priority_topics = priority_topics
        super().__init__(
            priority_topics.names,
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            client=None if clients is None else sharing.client_of(clients),
            producer=producer,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            **options,
        )

    @property
    def _logical_topics(self) -> Mapping[str, Sequence[str]]:
        return dict(zip(self._priority_topics.logical, zip(*self._priority_topics.of, strict=True), strict=True))


def _check_clients(clients: object, priorities: int) -> None:
    if not isinstance(clients, list | tuple) or len(clients) != priorities:
        raise ConfigurationError("clients", clients, f"must be one for each of the {priorities} priorities")
    for client in clients:
        check_interface(client, "clients", Client)


def _check_polls(max_poll_records: int, history_window: int, burst_threshold: int, ageing: float) -> None:
    check_count("max_poll_records", max_poll_records)
    check_count("history_window", history_window)
    check_count("burst_threshold", burst_threshold)
    if history_window > _LONGEST_HISTORY:
        raise ConfigurationError("history_window", history_window, f"must be at most {_LONGEST_HISTORY:,}")
    if burst_threshold > history_window:
        raise ConfigurationError(
            "burst_threshold", burst_threshold, f"must not be above history_window ({history_window})"
        )
    if ageing != math.inf:
        check_time("ageing", ageing)


def _checked_weights(weights: Sequence[float] | None, priorities: int) -> list[float]:
    if weights is None:
        return [float(weight) for weight in exponential(priorities)]
    given: object = weights
    found = list(weights) if isinstance(given, Iterable) else []
    if len(found) != priorities or not all(type(one) in (int, float) and 0 < one <= _HEAVIEST for one in found):
        raise ConfigurationError(
            "weights", weights, f"must be {priorities} numbers above 0, {_HEAVIEST:g} at most, lowest priority first"
        )
    return found
