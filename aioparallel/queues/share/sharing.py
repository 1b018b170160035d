"""The extension that makes a consumer a member of a share group."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import Any

from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.config.extension import Extension
from aioparallel.config.options import Options
from aioparallel.group.client import Client
from aioparallel.group.membership import RunParts
from aioparallel.group.share_client import ShareClient
from aioparallel.observe.stats import Contact
from aioparallel.queues.share.acknowledging import OnLate
from aioparallel.queues.share.deliveries import Deliveries
from aioparallel.queues.share.redelivery import ShareRetry
from aioparallel.queues.share.run import ShareRun
from aioparallel.queues.share.sources import ShareSource
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record, TopicPartition

__all__ = ["ShareMembership", "Sharing"]

logger = logging.getLogger(__name__)


class Sharing(Extension):
    """Replaces the membership of a consumer group. ``client``: the user's; None: aiokafka's. The others: as in
    :class:`~aioparallel.queues.share.run.ShareRun`."""

    def __init__(
        self,
        client: ShareClient | None,
        retry: ShareRetry,
        max_deliveries: int | None,
        on_late: OnLate | None,
        *,
        has_letters: bool,
    ) -> None:
        self._client = client
        self._retry = retry
        self._max_deliveries = max_deliveries
        self._on_late = on_late
        self._has_letters = has_letters

    def membership(self, group_id: str, servers: str, options: Options) -> ShareMembership:
        """Return a membership of the share group."""
        client = self._client or AiokafkaShareClient(servers, group_id, client_options=options.connecting_options)
        deliveries = Deliveries(client, self._max_deliveries, has_letters=self._has_letters)
        return ShareMembership(
            client,
            lambda parts: ShareRun(client, parts, self._retry, deliveries, self._on_late),
            deliveries,
            group_id=group_id,
            has_own_client=self._client is not None,
        )

    def may_attempt(self, record: Record[Any, Any]) -> None:
        """Check the lock. Raises LockLost."""
        source = record._source
        assert isinstance(source, ShareSource)
        source.begin(record.offset)


class ShareMembership:
    """A member of a share group. ``new_run``: makes its run."""

    client: Client | None = None

    def __init__(
        self,
        client: ShareClient,
        new_run: Callable[[RunParts], ShareRun],
        deliveries: Deliveries,
        *,
        group_id: str,
        has_own_client: bool,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._new_run = new_run
        self._deliveries = deliveries
        self.has_own_client = has_own_client

    async def start(self, timeout: float) -> None:
        """Connect. Raises ConfigurationError if the group gives records up before they would be dead-lettered."""
        await self._client.start(timeout)
        if not self._deliveries.has_letters and self._client.dead_letter_topic is None:
            logger.warning(
                "Share group %s: a record that fails in all its deliveries (share.delivery.count.limit, by default 5) "
                "is LOST. Set dead_letter=; or, from Kafka 4.4 on, let the brokers write dead letters: `aioparallel "
                "share configure %s errors.deadletterqueue.topic.name=TOPIC`",
                self._group_id,
                self._group_id,
                extra={"action": "share_no_dead_letters", "group": self._group_id},
            )
        limit, most = self._client.delivery_limit, self._deliveries.most
        if limit is not None and self._deliveries.has_letters and most > limit:
            raise ConfigurationError(
                "max_deliveries",
                most,
                f"must be at most {limit}, the group's share.delivery.count.limit: after so many deliveries a record "
                "is lost, before it would be dead-lettered. Set max_deliveries, or raise the limit: `aioparallel share "
                f"configure {self._group_id} share.delivery.count.limit={most}`",
            )
        if limit == most and self._deliveries.has_letters and self._client.dead_letter_topic is None:
            logger.warning(
                "Share group %s: max_deliveries=%d is the group's share.delivery.count.limit. A record whose process "
                "dies in its last delivery is LOST. One less leaves a delivery in which it is dead-lettered: set "
                "max_deliveries=%d, or raise the limit: `aioparallel share configure %s "
                "share.delivery.count.limit=%d`",
                self._group_id,
                most,
                most - 1,
                self._group_id,
                most + 1,
                extra={"action": "share_runs_last_delivery", "group": self._group_id},
            )

    async def stop(self, timeout: float) -> None:
        """Release what is locked, leave the group and close all connections."""
        await self._client.stop(timeout)

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics."""
        assert not isinstance(topics, re.Pattern)
        return await self._client.partitions(topics, timeout)

    async def look_up(self, partitions: Collection[TopicPartition]) -> None:
        """Ask for nothing: the group knows where reading begins."""

    def run(self, parts: RunParts) -> ShareRun:
        """Make the run."""
        return self._new_run(parts)

    def contact(self) -> Contact:
        """Return which brokers and partitions can be reached."""
        return self._client.contact()
