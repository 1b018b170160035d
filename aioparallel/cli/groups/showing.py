"""``aioparallel groups list`` and ``show``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from rich.live import Live

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import make_console, say
from aioparallel.cli.database import open_engine
from aioparallel.cli.groups.commands import GroupAccess, Limits, Showing
from aioparallel.cli.groups.printing import group_object, letters_for, list_table, objects, shown
from aioparallel.cli.groups.reading import (
    Connected,
    GroupView,
    PartitionView,
    PositionsOf,
    connected,
    group_not_found,
    read_groups,
)
from aioparallel.cli.groups.sampling import Sampler
from aioparallel.cli.kmq.status import QueueStatus, group_of_trackers
from aioparallel.cli.reading_client import reading_client
from aioparallel.clients.aiokafka.group_admin import GroupState, ListedGroup
from aioparallel.group.client import Committed
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["EXCEEDED", "OpenRecords", "is_stuck", "list_groups", "open_records", "positions_reader", "show_group"]

EXCEEDED: Final = 4
"""The exit code if a limit is exceeded."""
UNKNOWN: Final = 1
"""The exit code if it is unknown whether a record is stuck."""


async def list_groups(where: Cluster, *, as_json: bool) -> None:
    """``aioparallel groups list``."""
    async with connected(where) as to:
        listed = await to.admin.list_groups()
        found = await read_groups(to, [one.name for one in listed])
    # The list knows the state and type of every group, also of share groups and streams groups.
    known = {one.name: one for one in listed}
    views = [replace(one, state=_with_listed(one.state, known[one.name])) for one in found]
    console = make_console()
    if as_json:
        for one in views:
            console.file.write(json.dumps(group_object(one, is_sampled=False), ensure_ascii=False) + "\n")
    elif views:
        console.print(list_table(views))
    else:
        say("There are no groups that this user may see.")


def _with_listed(state: GroupState, listed: ListedGroup) -> GroupState:
    return state._replace(state=listed.state or state.state, type=listed.type or state.type)


class OpenRecords:
    """The open records of the KMQ queues of a group, by partition of the queue."""

    def __init__(self, queues: Mapping[str, QueueStatus]) -> None:
        self._queues = queues

    async def added_to(self, views: Sequence[PartitionView]) -> list[PartitionView]:
        """The same views with their open records."""
        found = {
            TopicPartition(queue, one.partition): (one, status.open_in(one.partition))
            for queue, status in self._queues.items()
            for one in await status.update()
        }
        return [
            replace(view, open=one, open_committed=sum(map(view.work.known.is_complete, offsets)))
            for view in views
            for one, offsets in [found.get(view.work.partition, (None, ()))]
        ]


@asynccontextmanager
async def open_records(where: GroupAccess) -> AsyncIterator[OpenRecords]:
    """Find the markers of the queues that ``where`` names. Raises TopicNotFound and other errors of the topics."""
    async with AsyncExitStack() as stack:
        queues = {}
        for queue, markers in where.queues().items():
            topics = QueueTopics(queue, markers, None)
            trackers = await group_of_trackers(queue, topics, where)
            client = await stack.enter_async_context(reading_client(where, trackers))
            status = queues[queue] = QueueStatus(client, topics, where.skipped)
            if not await status.begin(where.bootstrap_servers):
                say(f"No tracker of {queue} has committed, so its markers are read from their beginning.")
        yield OpenRecords(queues)


def positions_reader(where: GroupAccess) -> PositionsOf | None:
    """Reads positions from the database that ``where`` names; None: they are in Kafka. Raises ConfigurationError."""
    url = where.stored_in.database
    if url is None:
        return None

    async def read(group: str) -> Mapping[TopicPartition, Committed]:
        from aioparallel.persistence.sql.reading import stored_positions  # noqa: PLC0415 - needs the extra sql
        from aioparallel.persistence.sql.schema import Schema  # noqa: PLC0415

        schema = Schema(where.stored_in.prefix, where.stored_in.schema)
        async with open_engine("database", url, "the positions could not be read") as engine:
            found = await stored_positions(engine, schema, group)
        if not found:
            raise ClientError(
                f"group {group!r} has no positions in the tables {schema.prefix}...; without --database those in Kafka "
                "are shown"
            )
        return found

    return read


def is_stuck(view: PartitionView, now: float, after: float) -> bool:
    """Whether the oldest incomplete record is older than ``after`` seconds."""
    return (view.oldest_age(now) or 0.0) > after


async def show_group(group: str, how: Showing, limits: Limits, where: GroupAccess) -> int:
    """``aioparallel groups show``. Returns the exit code."""
    positions_of = positions_reader(where)
    async with connected(where) as to, open_records(where) as queues:
        limit = await to.admin.metadata_limit()
        sampler = Sampler(to.client, where.skipped, whole=how.count)
        console, letters = make_console(), letters_for(make_console().encoding)

        async def update() -> tuple[GroupView, list[PartitionView], float]:
            view = await _read(to, group, how, positions_of, where.bootstrap_servers)
            partitions = await queues.added_to(await sampler.sample(view.partitions))
            view, now = replace(view, partitions=partitions), time.time()
            after = how.stuck_after
            return view, [one for one in partitions if after is None or is_stuck(one, now, after)], now

        view, partitions, now = await update()
        with ExitStack() as stack:
            live = None
            if how.watch and not how.as_json:
                live = stack.enter_context(Live(console=console, auto_refresh=False))
            while True:
                if how.as_json:
                    for one in objects(view, partitions, now, limit):
                        print(json.dumps(one, ensure_ascii=False), flush=True)
                else:
                    picture = shown(view, partitions, now, limit, console.width, letters)
                    if live is None:
                        console.print(picture, soft_wrap=False, highlight=False, markup=False)
                    else:
                        live.update(picture, refresh=True)
                if not how.watch:
                    break
                await asyncio.sleep(how.every)
                view, partitions, now = await update()
    return exit_code(view, partitions, how, limits)


def exit_code(view: GroupView, partitions: Sequence[PartitionView], how: Showing, limits: Limits) -> int:
    """4 if a limit is exceeded, else 1 if that is unknown; a line says which. ``partitions``: those that are shown."""
    code = 0
    if limits.max_remaining is not None and view.remaining > limits.max_remaining:
        say(f"{view.remaining:,} records are left, more than --max-remaining={limits.max_remaining:,}.")
        code = EXCEEDED
    if how.stuck is not None and partitions:
        say(f"Stuck: {', '.join(str(one.work.partition) for one in partitions)}.")
        code = EXCEEDED
    unread = [str(one.work.partition) for one in view.partitions if one.work.remaining and one.sampled is None]
    if how.stuck is not None and unread:
        say(f"Records of {', '.join(unread)} could not be read, so it is unknown whether one is stuck.")
        code = code or UNKNOWN
    return code


async def _read(to: Connected, group: str, how: Showing, positions_of: PositionsOf | None, servers: str) -> GroupView:
    (view,) = await read_groups(to, [group], positions_of)
    if group_not_found(view):
        raise ClientError(
            f"there is no consumer group {group!r} at {servers}; `aioparallel groups list` names those that exist, and "
            "`aioparallel share describe` shows share groups"
        )
    if how.topic:
        kept = [one for one in view.partitions if one.work.partition.topic in how.topic]
        if not kept:
            topics = sorted({one.work.partition.topic for one in view.partitions})
            raise ClientError(f"group {group!r} reads none of {', '.join(how.topic)}; it reads {', '.join(topics)}")
        view = replace(view, partitions=kept)
    return view
