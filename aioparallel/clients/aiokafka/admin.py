"""Manages topics and groups: listing, creating, deleting, committed offsets.

aiokafka's admin client sends each request once and waits 40 s for a broker that hangs. It returns most error codes
unchecked, and reports no offsets while a group's coordinator is loading. Here each call retries transient failures
until its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import aiokafka.errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.admin import ApiVersionRequest, DeleteGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from aioparallel.clients.aiokafka.aiokafka_errors import deadline, is_passing
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.checking import GivenOptions, rebootstrap_after
from aioparallel.clients.aiokafka.connecting import close_or_cut_off, start_client
from aioparallel.clients.aiokafka.internals import ClusterView, OffsetFetchAnswer
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.metadata import all_metadata, listed, log_ranges
from aioparallel.clients.aiokafka.settings import check_servers, option_names
from aioparallel.group.client import Committed
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, ConsumerStateError, NotAuthorized, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["Admin", "PartitionReplicas", "create_topic"]

T = TypeVar("T")

_SET_FOR_TOPIC: Final = 1
"""DYNAMIC_TOPIC_CONFIG among the sources of a config (Kafka's DescribeConfigs response)."""
_AGAIN: Final = 0.02
"""Seconds before a retry."""
_ONE_BROKER: Final = 5.0
"""Seconds for one broker's answer."""
_REFUSED: Final = (
    kafka.ClusterAuthorizationFailedError,
    kafka.GroupAuthorizationFailedError,
    kafka.TopicAuthorizationFailedError,
)


class PartitionReplicas(NamedTuple):
    """A partition and its replicas, by the ids of their brokers. ``leader``: -1 if there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Admin:
    """Manages one cluster. An async context manager: connected between entering and leaving.

    ``options``: options of aiokafka's clients by their names there; those that do not concern connections are ignored.
    ``timeout``: seconds for each call, and for connecting.
    Every call raises NotAuthorized, ClusterChanged, ClientError and TimeoutError. Connecting also raises
    BrokerUnreachable.
    """

    def __init__(
        self, bootstrap_servers: str, options: Mapping[str, object] | None = None, *, timeout: float = 30.0
    ) -> None:
        check_servers(bootstrap_servers)
        known = option_names(AIOKafkaAdminClient) - {"bootstrap_servers"}
        self._options = {"client_id": "aioparallel"} | {k: v for k, v in (options or {}).items() if k in known}
        self._rebootstrap_after = rebootstrap_after(GivenOptions(options or {}, lambda _name: "options"))
        self._bootstrap_servers = bootstrap_servers
        self._timeout = timeout
        self._connected: Any = None
        self._broker_watch: BrokerWatch | None = None

    async def __aenter__(self) -> Self:
        admin = self._connected = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers, **self._options)
        self._broker_watch = BrokerWatch(
            admin._client, self._bootstrap_servers, _ONE_BROKER, rebootstrap_after=self._rebootstrap_after
        )
        await start_client(admin._client, admin.start, self._close, self._timeout, _AGAIN)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        admin, self._connected = self._connected, None
        if admin is not None:
            await close_or_cut_off(admin._client, admin.close(), _ONE_BROKER)  # aiokafka's close swallows cancellation

    # -- topics

    async def topics(self) -> dict[str, int]:
        """The topics visible to this user, with the number of partitions of each."""
        cluster = await self._metadata()
        names = cluster.topics(exclude_internal_topics=True)
        return {name: len(cluster.partitions_for_topic(name) or ()) for name in names}

    async def log_ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first and the next offset of each log, after the records of open transactions as well. Left out are
        partitions that do not exist any more, and those in :meth:`leaderless`."""
        return await self._answer(
            f"asking for the offsets of {listed(partitions)}", lambda: log_ranges(self._admin._client, partitions)
        )

    async def leaderless(self) -> set[TopicPartition]:
        """The partitions of :meth:`topics` that have no leader, so that nothing can be asked about their logs."""
        cluster = await self._metadata()
        return {
            TopicPartition(name, number)
            for name in cluster.topics(exclude_internal_topics=True)
            for number in (cluster.partitions_for_topic(name) or set())
            - (cluster.available_partitions_for_topic(name) or set())
        }

    async def brokers(self) -> int:
        """The number of running brokers."""
        return len((await self._metadata()).brokers())

    async def _metadata(self) -> ClusterView:
        return await self._answer("asking for the topics", lambda: all_metadata(self._admin._client))

    async def supports(self, api_key: int) -> bool:
        """Whether the broker answers such requests (ApiVersions). ``api_key``: of the request, in Kafka's protocol."""

        async def ask() -> bool:
            if (node := self._admin._client.get_random_node()) is None:
                raise kafka.NodeNotReadyError
            answer = await self._admin._client.send(node, ApiVersionRequest())
            _raise(answer.error_code)
            return any(key == api_key for key, _, _ in answer.api_versions)

        return await self._answer("asking for the supported requests", ask)

    async def describe_topic(self, name: str) -> list[PartitionReplicas]:
        """The topic's partitions in order. Raises TopicNotFound, and creates no topic."""
        # aiokafka's request for a single topic lets the broker create it.
        if name not in (await self._metadata()).topics(exclude_internal_topics=False):
            raise TopicNotFound([name], self._bootstrap_servers)

        async def describe() -> list[PartitionReplicas]:
            (found,) = await self._admin.describe_topics([name])
            if found["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicNotFound([name], self._bootstrap_servers)
            _raise(found["error_code"])
            return sorted(
                PartitionReplicas(one["partition"], one["leader"], tuple(one["replicas"]), tuple(one["isr"]))
                for one in found["partitions"]
            )

        return await self._answer(f"asking for topic {name!r}", describe)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replication: int = 1
    ) -> None:
        """Create a topic with ``replication`` replicas of each partition, and wait until each has a leader."""
        topic, attempts = NewTopic(name, partitions, replication, topic_configs=dict(configs or {})), 0

        async def create() -> None:
            nonlocal attempts
            attempts += 1
            _, code, message = (await self._admin.create_topics([topic])).topic_errors[0][:3]
            if code == ErrorCode.TOPIC_ALREADY_EXISTS and attempts > 1:
                return  # created by an earlier attempt whose answer was lost
            if is_passing(kafka.for_code(code)) or issubclass(kafka.for_code(code), _REFUSED):
                raise kafka.for_code(code)
            if code == ErrorCode.INVALID_REPLICATION_FACTOR and "fenced" in (message or ""):
                # The controller has no active broker: all have just started, or hang.
                raise kafka.NodeNotReadyError(message)
            if code != ErrorCode.NONE:
                raise ClientError(
                    f"topic {name!r} with {partitions} partitions was not created at {self._bootstrap_servers}: "
                    f"{message} (Kafka error {code}){from_later_kafka(message or '')}"
                )

        async def led() -> None:
            (found,) = await self._admin.describe_topics([name])
            described = found.get("partitions", ())
            if len(described) != partitions or any(one["error_code"] or one["leader"] < 0 for one in described):
                raise kafka.LeaderNotAvailableError(name)

        await self._answer(f"creating topic {name!r}", create, "CREATE on the topic, or on the cluster")
        await self._answer(f"waiting for the leaders of topic {name!r}", led)

    async def delete_topics(self, *names: str) -> None:
        """Delete topics. A missing topic counts as deleted."""

        async def delete() -> None:
            for _, code in (await self._admin.delete_topics(list(names))).topic_error_codes:
                if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _raise(code)

        await self._answer(f"deleting {', '.join(names)}", delete, "DELETE on the topic")

    async def configs(self, topic: str) -> dict[str, str]:
        """The topic's configs by name, including defaults."""
        _, entries = await self._config_entries(topic)
        return {entry[0]: entry[1] for entry in entries}

    async def own_configs(self, topic: str) -> dict[str, str]:
        """The configs that are set for this topic, by name."""
        version, entries = await self._config_entries(topic)
        # Version 0 says whether the value is the default; later versions name its source.
        return {entry[0]: entry[1] for entry in entries if (entry[3] == _SET_FOR_TOPIC if version else not entry[3])}

    async def _config_entries(self, topic: str) -> tuple[int, list[tuple[Any, ...]]]:
        """The version of the response, and its entries: name, value, whether it is read-only, and its source."""

        async def describe() -> tuple[int, list[tuple[Any, ...]]]:
            (answer,) = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            code, _, _, _, entries = answer.resources[0]
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicNotFound([topic], self._bootstrap_servers)
            _raise(code)
            return answer.API_VERSION, entries

        return await self._answer(f"asking for the configs of {topic}", describe, "DESCRIBE_CONFIGS on the topic")

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition. Returns the new first offset of each log."""
        wanted = {partition: RecordsToDelete(offset) for partition, offset in before.items()}
        found = await self._answer(
            f"deleting records of {', '.join(map(str, before))}",
            lambda: self._admin.delete_records(wanted, timeout_ms=round(self._timeout * 1000)),
            "DELETE on the topic",
        )
        return {TopicPartition(*partition): offset for partition, offset in found.items()}

    # -- groups

    async def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """The group's committed offsets with their metadata, for these partitions or for all.

        Partitions without an offset are left out. The embedded broker does not support None (all partitions)."""
        request = OffsetFetchRequest(group, None if partitions is None else list(grouped(partitions).items()))

        async def ask() -> dict[TopicPartition, Committed]:
            node = await self._admin.find_coordinator(group)
            answer: OffsetFetchAnswer = await self._admin._client.send(node, request)
            _raise(answer.error_code if answer.API_VERSION >= 2 else ErrorCode.NONE)
            found = {}
            for topic, answers in answer.topics:
                for number, offset, metadata, code in answers:
                    _raise(code)
                    if offset >= 0:
                        found[TopicPartition(topic, number)] = Committed(offset, metadata or "")
            return found

        return await self._answer(f"asking for the committed offsets of group {group!r}", ask, "DESCRIBE on the group")

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. A missing group counts as deleted."""

        async def delete() -> None:
            node = await self._admin.find_coordinator(group)
            answer = await self._admin._client.send(node, DeleteGroupsRequest([group]))
            for _, code in answer.results:
                if code != ErrorCode.GROUP_ID_NOT_FOUND:
                    _raise(code)

        await self._answer(f"deleting group {group!r}", delete, "DELETE on the group")

    @property
    def _admin(self) -> Any:
        if self._connected is None:
            raise ConsumerStateError("the admin is not connected: use it with `async with`")
        return self._connected

    async def _answer(self, doing: str, ask: Callable[[], Awaitable[T]], right: str = "DESCRIBE on the topic") -> T:
        """Retry until there is an answer or a permanent failure. ``right``: the permission that the user needs."""
        async with deadline(self._timeout, doing):
            while True:
                if self._broker_watch is not None and self._broker_watch.failure is not None:
                    raise self._broker_watch.failure
                try:
                    async with asyncio.timeout(_ONE_BROKER):
                        return await ask()
                except TimeoutError:
                    pass
                except AttributeError as error:
                    # aiokafka sends to None while the metadata has no controller, e.g. just after one was killed.
                    if error.obj is not None:
                        raise
                except _REFUSED as error:
                    raise NotAuthorized(f"{doing}: this user needs the permission {right}") from error
                except kafka.KafkaError as error:
                    if not is_passing(error):
                        raise
                await asyncio.sleep(_AGAIN)
                await self._admin._client.force_metadata_update()


def _raise(code: int) -> None:
    if code != ErrorCode.NONE:
        raise kafka.for_code(code)


async def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    configs: Mapping[str, str] | None,
    timeout: float,
    replication: int = 1,
) -> None:
    """:meth:`Admin.create_topic` with a connection of its own, within ``timeout`` seconds in total."""
    doing = f"creating topic {name!r} at {bootstrap_servers}"
    async with deadline(timeout, doing), Admin(bootstrap_servers, timeout=timeout) as admin:
        await admin.create_topic(name, partitions, configs, replication)


def from_later_kafka(refusal: str) -> str:
    """What to add to a refusal if it names a config that older brokers do not have."""
    is_later = "Unknown" in refusal and "errors.deadletterqueue." in refusal
    return "; brokers write dead letters of share groups from Kafka 4.4 on (share.version=2)" if is_later else ""
