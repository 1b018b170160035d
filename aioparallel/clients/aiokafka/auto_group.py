"""A member of a group of the new protocol if the brokers have it and the group may have it; else of the classic one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import Any, cast

from aiokafka.consumer.group_coordinator import GroupCoordinator

from aioparallel.clients.aiokafka.classic_group import ClassicGroup
from aioparallel.clients.aiokafka.consumer_group import ConsumerGroup
from aioparallel.clients.aiokafka.group_refusals import ProtocolRefused
from aioparallel.clients.aiokafka.internals import Consumer, Coordinator
from aioparallel.clients.aiokafka.settings import ConsumerSettings
from aioparallel.config.group_protocol import check_pattern
from aioparallel.group.client import Generation, RebalanceListener

__all__ = ["AutoGroup"]

logger = logging.getLogger(__name__)


class AutoGroup:
    """See :class:`~aioparallel.clients.aiokafka.client.Group` for each method. ``make_new(on_failure)`` and
    ``make_classic(coordinator)`` make the two members."""

    def __init__(
        self,
        settings: ConsumerSettings,
        consumer: Consumer,
        make_new: Callable[[Callable[[Exception], None]], ConsumerGroup],
        make_classic: Callable[[Coordinator], ClassicGroup],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._make_classic = make_classic
        self._on_failure = on_failure
        new = make_new(self._failed)
        self.coordinator = new.coordinator
        self._group: ConsumerGroup | ClassicGroup = new
        self._subscribed: tuple[Collection[str] | re.Pattern[str], RebalanceListener] | None = None

    @property
    def assigns_in_steps(self) -> bool:
        return self._group.assigns_in_steps

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        self._subscribed = topics, listener
        if isinstance(topics, re.Pattern):
            check_pattern("auto", self._settings.remote_assignor, topics, ())
            self._use_classic("the topics are given as a pattern of Python, and the brokers would match one of RE2/J")
        else:
            self._group.subscribe(topics, listener)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ProtocolRefused):
            self._use_classic(error)
        else:
            self._on_failure(error)

    def _use_classic(self, why: object) -> None:
        if self._subscribed is None:
            return
        logger.info(
            "Group %s: the classic protocol is used: %s",
            self._settings.group_id,
            why,
            extra={"action": "classic_protocol", "group_id": self._settings.group_id},
        )
        if isinstance(self._group, ConsumerGroup):
            self._group.give_up("its protocol is refused")
        self._group = self._make_classic(_coordinated(self._consumer, self._settings))
        self._group.subscribe(*self._subscribed)
        # A pattern matches topics at a metadata update, and the last one may have come before.
        self._consumer._client.force_metadata_update()

    def check(self) -> None:
        self._group.check()

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        self._group.fenced(generation, instance_fenced=instance_fenced)

    def removed(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        self._group.removed(generation, instance_fenced=instance_fenced)

    def stale(self, generation: Generation) -> None:
        self._group.stale(generation)

    def close(self) -> None:
        self._group.close()

    async def leave(self, timeout: float) -> None:
        await self._group.leave(timeout)


def _coordinated(consumer: Consumer, settings: ConsumerSettings) -> Coordinator:
    """Give aiokafka's consumer the coordinator that it would have made with a group id."""
    inside, options = cast("Any", consumer), settings.options
    former = inside._coordinator
    former._reset_committed_task.cancel()
    # It would assign all partitions at the next metadata update.
    inside._client.cluster.remove_listener(former._handle_metadata_update)
    inside._subscription.unsubscribe()
    inside._coordinator = GroupCoordinator(
        inside._client,
        inside._subscription,
        group_id=settings.group_id,
        group_instance_id=settings.instance_id,
        heartbeat_interval_ms=options["heartbeat_interval_ms"],
        session_timeout_ms=options["session_timeout_ms"],
        retry_backoff_ms=inside._retry_backoff_ms,
        enable_auto_commit=False,
        assignors=options["partition_assignment_strategy"],
        exclude_internal_topics=inside._exclude_internal_topics,
        rebalance_timeout_ms=options["rebalance_timeout_ms"],
        max_poll_interval_ms=options["max_poll_interval_ms"],
    )
    return cast("Coordinator", inside._coordinator)
