"""Lists, describes, creates and deletes topics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from rich.table import Table
from rich.text import Text

from aioparallel.cli.broker import NewTopic
from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.console import confirm, counted, make_console, plain_text, require_consent, say
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, offset_ranges
from aioparallel.cli.topics.commands import Creating
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import ClientError, ConfigurationError, NotAuthorized, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["create_topics", "delete_topics", "describe_topic", "list_topics"]

REPLICAS: Final = 3
"""Replicas of a new topic if there are as many brokers."""
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DESCRIBE_CONFIGS: Final = 32
# Keys of requests in Kafka's protocol.


async def list_topics(where: Cluster, *, as_json: bool) -> None:
    """``aioparallel topics list``."""
    async with _admin(where) as admin:
        partitions = await admin.topics()
        ranges = await offset_ranges(admin, _partitions_of(partitions))
    rows = [(name, count, _offsets_in(ranges, name)) for name, count in sorted(partitions.items())]
    console = make_console()
    if as_json:
        for name, count, offsets in rows:
            console.file.write(json.dumps({"topic": name, "partitions": count, "offsets": offsets}) + "\n")
        return
    if not rows:
        say("There are no topics. `aioparallel topics create NAME:PARTITIONS` creates one.")
        return
    table = _table("topic", "partitions", "offsets")
    for name, count, offsets in rows:
        table.add_row(plain_text(name), f"{count:,}", f"{offsets:,}")
    console.print(table)


async def describe_topic(topic: str, where: Cluster, *, as_json: bool) -> None:
    """``aioparallel topics describe``."""
    async with _admin(where) as admin:
        described = await admin.describe_topic(topic)
        configs = await _own_configs(admin, topic)
        ranges = await offset_ranges(admin, [TopicPartition(topic, one.partition) for one in described])
    console = make_console()
    if as_json:
        for one in described:
            first, following = ranges.get(TopicPartition(topic, one.partition), (None, None))
            fields = {**one._asdict(), "first_offset": first, "next_offset": following}
            console.file.write(json.dumps(fields) + "\n")
        return
    total = sum(following - first for first, following in ranges.values())
    console.print(
        f"{plain_text(topic)}: {counted(len(described), 'partition')}, {counted(total, 'offset')}", highlight=False
    )
    table = _table("partition", "first offset", "next offset", "leader", "replicas", "in sync")
    for one in described:
        offsets = [f"{offset:,}" for offset in ranges.get(TopicPartition(topic, one.partition), ())]
        leader = "none" if one.leader < 0 else str(one.leader)
        ids = (", ".join(map(str, some)) for some in (one.replicas, one.in_sync))
        table.add_row(str(one.partition), *(offsets or ("unknown", "unknown")), leader, *ids)
    console.print(table)
    for name, value in sorted(configs.items()):
        console.print(f"{plain_text(name)}={plain_text(value)}", highlight=False, markup=False)


async def create_topics(names: Sequence[str], how: Creating, where: Cluster) -> None:
    """``aioparallel topics create``."""
    if not names:
        raise ConfigurationError("NAMES", None, "must be given, as in orders:8")
    wanted = [NewTopic.of(text) for text in names]
    async with _admin(where) as admin:
        await _require(admin, CREATE_TOPICS, "creates no topics")
        exist = await admin.topics()
        if not how.if_missing and (known := [topic.name for topic in wanted if topic.name in exist]):
            raise ConfigurationError(
                "NAMES", known[0], "exists; --if-missing leaves it as it is, and another name creates another topic"
            )
        replication = how.replication or min(REPLICAS, await admin.brokers())
        for topic in wanted:
            if topic.name in exist:
                say(f"{topic.name} exists, with {counted(exist[topic.name], 'partition')}; nothing was changed.")
                continue
            compaction = {"cleanup.policy": "compact"} if topic.is_compacted else {}
            await admin.create_topic(topic.name, topic.partitions, {**compaction, **how.configs()}, replication)
            say(f"Created {topic}, {counted(replication, 'replica')} of each partition.")


async def delete_topics(names: Sequence[str], where: Cluster, *, yes: bool) -> None:
    """``aioparallel topics delete``."""
    if not names:
        raise ConfigurationError("NAMES", None, "must be given")
    require_consent("--yes skips the question", yes)
    async with _admin(where) as admin:
        await _require(admin, DELETE_TOPICS, "deletes no topics")
        exist = await admin.topics()
        if missing := set(names) - exist.keys():
            raise TopicNotFound(missing, where.bootstrap_servers)
        if not yes:
            ranges = await offset_ranges(admin, _partitions_of({name: exist[name] for name in names}))
            which = ", ".join(f"{name} ({counted(_offsets_in(ranges, name), 'offset')})" for name in names)
            if not confirm(f"Delete {which}?"):
                say("Nothing was done.")
                return
        await admin.delete_topics(*names)
        say(f"Deleted {', '.join(names)}.")


@asynccontextmanager
async def _admin(where: Cluster) -> AsyncIterator[Admin]:
    async with Admin(where.bootstrap_servers, connecting_options(where), timeout=REQUEST_TIMEOUT) as admin:
        yield admin


def _partitions_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of topics, of each of which the number of partitions is given."""
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


def _offsets_in(ranges: Mapping[TopicPartition, tuple[int, int]], topic: str) -> int:
    return sum(end - first for partition, (first, end) in ranges.items() if partition.topic == topic)


async def _require(admin: Admin, api_key: int, lack: str) -> None:
    """Raise ClientError if the broker does not know such requests. ``lack``: what it does not do."""
    if not await admin.supports(api_key):
        raise ClientError(
            f"this broker {lack} on request: `aioparallel broker` creates those that its --topic NAME:PARTITIONS "
            "names, for as long as it runs; `aioparallel broker --kafka` starts Apache Kafka, which does both"
        )


async def _own_configs(admin: Admin, topic: str) -> dict[str, str]:
    """The topic's own configs; without the permission to read them a warning."""
    try:
        return await admin.own_configs(topic) if await admin.supports(DESCRIBE_CONFIGS) else {}
    except NotAuthorized as error:
        say(f"WARNING the topic's configs are not shown: {error}")
        return {}


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table
