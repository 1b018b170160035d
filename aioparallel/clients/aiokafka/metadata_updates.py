"""The first metadata and their updates, in place of aiokafka's. The first answer counts.

Known brokers are asked one after the other, each without waiting for the one before. Then the configured addresses are
asked: at once if all brokers have failed, after five seconds if they are silent. The client rebootstraps when it has
had no metadata for five minutes, or when a broker tells it to: it closes its connections and starts from the configured
addresses (KIP-899, KIP-1102).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Final

from aioparallel.clients.aiokafka.bootstrapping import ROUND, Bootstrap
from aioparallel.clients.aiokafka.connector import Connector, cut_all
from aioparallel.clients.aiokafka.first_answer import cancel_all, first_answer
from aioparallel.clients.aiokafka.internals import ClusterView, Connections, MetadataAnswer
from aioparallel.clients.aiokafka.metadata_messages import Metadata, cluster_id_of, error_of
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClusterChanged

__all__ = ["REBOOTSTRAP_AFTER", "MetadataUpdates", "no_metadata_because"]

logger = logging.getLogger(__name__)

REBOOTSTRAP_AFTER: Final = 300.0
"""Seconds without metadata before a client rebootstraps, as in Kafka's own clients."""
_KNOWN_FIRST: Final = 5.0
"""Seconds for the known brokers before the configured addresses are asked as well."""
_CONFIGURED_ONLY: Final = 10.0
"""Seconds after a rebootstrap in which only the configured addresses are asked."""
_PAUSE: Final = 0.1
"""Seconds between two updates. aiokafka repeats them without a pause while a partition has no leader."""
_LOG_INTERVAL: Final = 10.0
"""Seconds between two log lines about missing metadata."""


class MetadataUpdates:
    """The metadata updates of one client.

    ``brokers()``: the known brokers, in the order to ask them. ``ask(node, request)``: asks one broker; None if it does
    not answer. ``rebootstrap_after``: seconds without metadata before the client rebootstraps. ``on_failure(error)`` is
    called once if another cluster is found; no connection is opened after that."""

    def __init__(
        self,
        connections: Connections,
        bootstrap: Bootstrap,
        connector: Connector,
        brokers: Callable[[], list[int]],
        ask: Callable[[object, object], Coroutine[None, None, MetadataAnswer | None]],
        rebootstrap_after: float,
        on_failure: Callable[[ClusterChanged], object],
    ) -> None:
        self._connections = connections
        self._bootstrap = bootstrap
        self._connector = connector
        self._brokers = brokers
        self._ask = ask
        self._rebootstrap_after = rebootstrap_after
        self._on_failure = on_failure
        self.failure: ClusterChanged | None = None
        self.no_first = ""
        """Why the first metadata have not come yet."""
        self._loop = asyncio.get_running_loop()
        self._last_update = self._loop.time() - _PAUSE
        self._without_since: float | None = None
        self._logged_at = -_LOG_INTERVAL
        self._configured_only_until = self._loop.time()
        connections.bootstrap = self.bootstrap  # type: ignore[method-assign]
        connections._metadata_update = self.update
        self._update_metadata = connections.cluster.update_metadata
        connections.cluster.update_metadata = self._updated  # type: ignore[method-assign]

    async def bootstrap(self) -> None:
        """``AIOKafkaClient.bootstrap``, again and again until a configured address answers. aiokafka's leaves its
        connection open when it is cancelled.

        Raises ClusterChanged if only another cluster answers."""
        began = self._loop.time()
        while (answer := await self._bootstrap.ask(Metadata([]))) is None:
            self._check_cluster()
            if self.failure is not None:
                raise self.failure
            self.no_first = self._bootstrap.reason
            if (without := self._loop.time() - began) >= ROUND:
                self._log_no_metadata(without)
            await asyncio.sleep(_PAUSE)
        self.no_first = ""
        self._bootstrap.end_rest()
        self._connections.cluster.update_metadata(answer)
        self._connections._sync_task = asyncio.create_task(self._connections._md_synchronizer())

    async def update(self, cluster: ClusterView, topics: Collection[str] | None) -> bool:
        """``AIOKafkaClient._metadata_update`` for these topics, or all. It creates none. aiokafka's allows brokers to
        create the topics in the request, so a subscribed topic that is deleted would return, empty."""
        pause = self._last_update + _PAUSE - self._loop.time()
        self._last_update = max(self._loop.time(), self._last_update + _PAUSE)
        if pause > 0:
            await asyncio.sleep(pause)
        answer = await self._in_time(Metadata(list(topics) if topics else None))
        if answer is None:
            cluster.failed_update(None)
            return False
        if not answer.brokers:
            return False
        self._take(cluster, answer)
        return True

    async def _in_time(self, request: object) -> MetadataAnswer | None:
        now = self._loop.time()
        since = now if self._without_since is None else self._without_since
        if now - since >= self._rebootstrap_after:
            self._rebootstrap(f"no metadata for {now - since:.0f} s")
            since = self._without_since = now
        try:
            async with asyncio.timeout_at(since + self._rebootstrap_after):
                answer = await self._answer(request)
        except TimeoutError:
            answer = None  # the next update rebootstraps
        if answer is not None:
            self._without_since = None
        elif self.failure is None:
            self._without_since = since
            self._log_no_metadata(self._loop.time() - since)
        return answer

    async def _answer(self, request: object) -> MetadataAnswer | None:
        """The first answer; None if all brokers and addresses fail."""
        if self.failure is not None:
            return None
        known = asyncio.create_task(first_answer(self._known(), lambda node: self._known_answer(node, request)))
        dialled: asyncio.Task[MetadataAnswer | None] | None = None
        try:
            await asyncio.wait({known}, timeout=_KNOWN_FIRST)
            while not known.done() or known.result() is None:
                if dialled is None and not self._bootstrap.is_resting:
                    dialled = asyncio.create_task(self._bootstrap.ask(request))
                pending = {task for task in (known, dialled) if task is not None and not task.done()}
                if not pending:
                    return None
                await asyncio.wait(pending, timeout=ROUND, return_when=asyncio.FIRST_COMPLETED)
                if dialled is not None and dialled.done():
                    if (answer := dialled.result()) is not None:
                        return self._from_configured(answer)
                    if known.done():
                        if (answer := known.result()) is None:
                            self._check_cluster()
                        return answer
                    dialled = None
            return known.result()
        finally:
            await cancel_all([task for task in (known, dialled) if task is not None])

    def _known(self) -> list[object]:
        if self._loop.time() < self._configured_only_until:
            return []
        return [*self._brokers()]

    async def _known_answer(self, node: object, request: object) -> MetadataAnswer | None:
        answer = await self._ask(node, request)
        if answer is None:
            return None
        if error_of(answer) == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap(f"broker {node} answers REBOOTSTRAP_REQUIRED")
            return None
        if not self._bootstrap.is_ours(cluster_id_of(answer)):
            cut_all(self._connections, node)
            return None
        return answer

    def _from_configured(self, answer: MetadataAnswer) -> MetadataAnswer:
        self._configured_only_until = self._loop.time()
        logger.info(
            "Metadata comes from %s, because no known broker answered",
            self._bootstrap.servers,
            extra={"action": "rebootstrapped", "bootstrap_servers": self._bootstrap.servers},
        )
        return answer

    def _check_cluster(self) -> None:
        """Fail for good if only another cluster has answered."""
        failure = self._bootstrap.other_cluster
        if failure is None or self.failure is not None:
            return
        self.failure = failure
        logger.error("%s", failure, extra={"action": "cluster_changed", "cluster_id": failure.found})
        self._connector.stop(str(failure))
        cut_all(self._connections)
        self._on_failure(failure)

    def _rebootstrap(self, why: str) -> None:
        """Close all connections, and ask only the configured addresses for a while."""
        if self._loop.time() < self._configured_only_until:
            return
        logger.warning(
            "All connections are closed (%s); rebootstrapping from %s",
            why,
            self._bootstrap.servers,
            extra={"action": "rebootstrap", "bootstrap_servers": self._bootstrap.servers},
        )
        self._configured_only_until = self._loop.time() + _CONFIGURED_ONLY
        cut_all(self._connections)

    # -- applying metadata

    def _updated(self, metadata: MetadataAnswer) -> None:
        """Called for aiokafka's own updates as well, ``fetch_all_metadata``."""
        self._bootstrap.is_ours(cluster_id_of(metadata))
        self._update_metadata(metadata)

    def _take(self, cluster: ClusterView, answer: MetadataAnswer) -> None:
        current = self._connections.cluster
        before = {broker.nodeId: (broker.host, broker.port) for broker in current.brokers()}
        cluster.update_metadata(answer)
        for broker in current.brokers():
            if (broker.host, broker.port) != before.get(broker.nodeId, (broker.host, broker.port)):
                cut_all(self._connections, broker.nodeId)  # its connections lead to the old address

    def _log_no_metadata(self, seconds: float) -> None:
        """Log occasionally: without a broker there are ten updates a second."""
        now = self._loop.time()
        if now - self._logged_at < _LOG_INTERVAL:
            return
        self._logged_at = now
        known = [f"{broker.host}:{broker.port}" for broker in self._connections.cluster.brokers()]
        logger.warning(
            "No metadata for %.0f s: no broker answers (%s), nor do the configured addresses (%s)",
            seconds,
            ", ".join(known) or "none is known",
            self._bootstrap.reason,
            extra={"action": "no_metadata"},
        )


def no_metadata_because(connections: Connections) -> str:
    """Why the first metadata of this client have not come; empty if they have, or are not asked for."""
    updates = getattr(connections.bootstrap, "__self__", None)
    return updates.no_first if isinstance(updates, MetadataUpdates) else ""
