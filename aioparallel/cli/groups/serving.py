"""``aioparallel groups serve``: remaining work over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.console import say
from aioparallel.cli.groups.commands import GroupAccess, Serving
from aioparallel.cli.groups.printing import group_object
from aioparallel.cli.groups.reading import Connected, GroupView, connected, group_not_found, read_groups
from aioparallel.cli.groups.showing import OpenRecords, open_records, positions_reader
from aioparallel.cli.reading_client import REQUEST_TIMEOUT
from aioparallel.cli.share.printing import objects
from aioparallel.cli.share.reading import Connected as ShareConnected
from aioparallel.cli.share.reading import GroupView as ShareView
from aioparallel.cli.share.reading import read_lag
from aioparallel.clients.aiokafka.share_admin import ShareAdmin
from aioparallel.event_loop.loop import stopping_signals
from aioparallel.observe.http_server import JSON, PLAIN, Answer, HttpServer, Request, Route
from aioparallel.records.errors import AioparallelError, ClientError, ConfigurationError, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["METRICS", "Figures", "Served", "answer", "prometheus", "serve_groups", "server_of"]

_READ: Final = 8.0
"""Seconds for reading the figures: scrapers wait for about ten."""
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_NOT_FOUND: Final = "there are /metrics, /groups and /groups/NAME"
_NO_GROUP: Final = "group {} is not served, or does not exist\n"

METRICS: Final[Mapping[str, str]] = {
    "aioparallel_group_remaining": "Records that are not complete, by the commits with their offset maps.",
    "aioparallel_group_lag": "Offsets above the committed ones.",
    "aioparallel_group_members": "Members of the group.",
    "aioparallel_share_group_lag": "Offsets of a share group that have not ended.",
    "aioparallel_share_group_start_offset": "All offsets of a share group below it have ended.",
    "aioparallel_share_group_lag_unknown": "Partitions of a share group whose lag is unknown.",
    "aioparallel_share_group_members": "Members of the share group.",
}


class Served(NamedTuple):
    """The groups that are served. ``sharing``: the share groups."""

    groups: Sequence[GroupView] = ()
    sharing: Sequence[ShareView] = ()


class Figures:
    """The figures of the groups, read when they are asked for, and kept for ``keep`` seconds. Readers that come while
    they are read wait for the same result, also if it is an error."""

    def __init__(self, read: Callable[[], Awaitable[Served]], keep: float, sources: str = "Kafka") -> None:
        self._read = read
        self._keep = keep
        self._sources = sources
        self._reading: asyncio.Task[Served] | None = None
        self._until = 0.0

    async def get(self) -> Served:
        """All groups. Raises the errors of Kafka and of the database, and TimeoutError."""
        now = asyncio.get_running_loop().time()
        if self._reading is None or (self._reading.done() and now >= self._until):
            self._reading = asyncio.create_task(self._read_now(), name="aioparallel-group-figures")
        return await asyncio.shield(self._reading)

    async def _read_now(self) -> Served:
        try:
            async with asyncio.timeout(_READ):
                found = await self._read()
        except TimeoutError:
            raise TimeoutError(f"{self._sources} has not answered within {_READ:g} s") from None
        self._until = asyncio.get_running_loop().time() + self._keep
        return found


async def answer(path: str, figures: Figures) -> Answer:
    """The answer to GET of this path."""
    try:
        served = await figures.get()
    except (AioparallelError, TimeoutError) as error:
        say(f"WARNING {error}")
        return Answer(503, PLAIN, f"{error}\n")
    if path == "/metrics":
        return Answer(200, _PROMETHEUS, prometheus(served))
    if path == "/groups":
        return _json({"groups": [*map(group_figures, served.groups), *map(share_figures, served.sharing)]})
    name = unquote(path.removeprefix("/groups/"))
    found = [group_figures(one) for one in served.groups if one.name == name]
    found += [share_figures(one) for one in served.sharing if one.group.name == name]
    return _json(found[0]) if found else Answer(404, PLAIN, _NO_GROUP.format(repr(name)))


def server_of(figures: Figures, host: str, port: int) -> HttpServer:
    """What serves these figures."""

    async def ask(request: Request) -> Answer:
        return await answer(request.path, figures)

    async def say_paths(request: Request) -> Answer:
        return Answer(200, PLAIN, f"{_NOT_FOUND}\n")

    of_groups = Route(ask, timeout=None)  # reading has a limit of its own
    routes = {"/": Route(say_paths), **dict.fromkeys(("/metrics", "/groups", "/groups/*"), of_groups)}
    return HttpServer(routes, port, host, _NOT_FOUND)


def _json(found: object) -> Answer:
    return Answer(200, JSON, json.dumps(found, ensure_ascii=False) + "\n")


def group_figures(group: GroupView) -> dict[str, object]:
    """A group for autoscalers. Names of fields are a public interface."""
    return {
        **group_object(group, is_sampled=False),
        "member_count": len(group.state.members),
        "partitions": [
            {
                "topic": one.work.partition.topic,
                "partition": one.work.partition.partition,
                "lag": one.work.lag,
                "remaining": one.remaining,
            }
            for one in group.partitions
        ],
    }


def share_figures(view: ShareView) -> dict[str, object]:
    """A share group for autoscalers. Names of fields are a public interface. An unknown lag is null."""
    group, *partitions = objects(view)
    del group["configs"]  # they are not read
    return {**group, "member_count": len(view.group.members), "partitions": partitions}


def prometheus(served: Served) -> str:
    """The text format 0.0.4 of Prometheus. Names of metrics and labels are a public interface. What is unknown is left
    out."""
    values: dict[str, list[str]] = {name: [] for name in METRICS}

    def add(name: str, value: int | None, group: str, place: TopicPartition | None = None) -> None:
        if value is not None:
            values[name].append(f"{name}{_labels(group, place)} {value}")

    for one in served.groups:
        for part in one.partitions:
            add("aioparallel_group_remaining", part.remaining, one.name, part.work.partition)
            add("aioparallel_group_lag", part.work.lag, one.name, part.work.partition)
        add("aioparallel_group_members", len(one.state.members), one.name)
    for view in served.sharing:
        name = view.group.name
        for place in view.partitions:
            add("aioparallel_share_group_lag", place.lag, name, place.partition)
            add("aioparallel_share_group_start_offset", place.offset.start, name, place.partition)
        add("aioparallel_share_group_lag_unknown", view.unknown, name)
        add("aioparallel_share_group_members", len(view.group.members), name)
    lines = []
    for name, meaning in METRICS.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *values[name]]
    return "\n".join(lines) + "\n"


def _labels(group: str, place: TopicPartition | None) -> str:
    labels: Mapping[str, object] = {"group": group}
    if place is not None:
        labels = {**labels, "topic": place.topic, "partition": place.partition}
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def serve_groups(names: Sequence[str], how: Serving, where: GroupAccess) -> None:
    """``aioparallel groups serve``."""
    if how.topic and not names:
        raise ConfigurationError("topic", how.topic[0], "needs the names of the groups that read it")
    stop = asyncio.Event()
    async with (
        connected(where) as to,
        ShareAdmin(where.bootstrap_servers, connecting_options(where), timeout=REQUEST_TIMEOUT) as admin,
        open_records(where) as queues,
    ):
        exist = (
            {place.topic for place in await to.client.partitions(how.topic, REQUEST_TIMEOUT)} if how.topic else set()
        )
        if missing := set(how.topic) - exist:
            raise TopicNotFound(missing, where.bootstrap_servers)
        sources = "Kafka" if where.stored_in.database is None else "Kafka or the database"
        share = ShareConnected(admin, to.client, where.bootstrap_servers)
        figures = Figures(_reader(to, share, names, how, queues, where), how.keep, sources)
        await figures.get()  # reports wrong settings at once

        server = server_of(figures, how.host, how.port)
        try:
            await server.__aenter__()
        except OSError as error:
            raise ClientError(
                f"{how.host}:{how.port}: {error.strerror or error}; --port chooses another port"
            ) from error
        try:
            example = quote(names[0], safe="") if names else "NAME"
            say(f"Serving {server.url}/metrics and {server.url}/groups/{example}; Ctrl-C ends it.")
            with stopping_signals(asyncio.get_running_loop(), stop.set):
                await stop.wait()
        finally:
            await server.__aexit__(None, None, None)
    say("Stopped.")


def _reader(
    to: Connected, share: ShareConnected, names: Sequence[str], how: Serving, queues: OpenRecords, where: GroupAccess
) -> Callable[[], Awaitable[Served]]:
    positions_of = positions_reader(where)

    async def read() -> Served:
        listed = await to.admin.list_groups()
        wanted = list(dict.fromkeys(names)) or [one.name for one in listed]
        shared = {one.name for one in listed if one.type.lower() == "share"}
        found = await read_groups(to, [name for name in wanted if name not in shared], positions_of, how.topic)
        views = [one for one in found if not group_not_found(one)]
        partitions = iter(await queues.added_to([place for one in views for place in one.partitions]))
        sharing = [view for name in wanted if name in shared and (view := await read_lag(share, name)) is not None]
        return Served(
            [replace(one, partitions=list(islice(partitions, len(one.partitions)))) for one in views], sharing
        )

    return read
