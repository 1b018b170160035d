"""A client whose brokers are gone, hang, send it away, or lost their addresses to others; with real connections, and
servers that report the cluster that a test sets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataResponse_v5

from aioparallel.clients.aiokafka import metadata_updates
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.metadata_messages import Metadata, _Metadata_v13
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClusterChanged, ConfigurationError
from tests.support.clusters.aiokafka_member import unique
from tests.support.waiting import DEADLINE, SLACK, until

METADATA, API_VERSIONS = 3, 18
OURS, OTHER = "our-cluster", "other-cluster"
WITHIN = 10.0


class Server:
    """Reports these ``brokers``: addresses by number. ``newest``: version of metadata."""

    def __init__(self, newest: int = 13, host: str = "127.0.0.1") -> None:
        self.newest = newest
        self.host = host
        self.port = 0
        self.cluster_id = OURS
        self.brokers: dict[int, Server] = {}
        self.code = 0
        self.delay = 0.0
        self.is_silent = False
        self.asked: list[int] = []
        self.open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._talk, self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self.open):
            writer.transport.abort()
        await until(lambda: not self.open)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                kind, version, number = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                self.asked.append(kind)
                await asyncio.sleep(self.delay if kind == METADATA else 0)
                if self.is_silent:
                    continue
                body = self._metadata(version) if kind == METADATA else self._versions()
                writer.write(struct.pack(">ii", len(body) + 4, number) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    def _versions(self) -> bytes:
        return struct.pack(">hi", 0, 1) + struct.pack(">hhh", METADATA, 0, self.newest)

    def _metadata(self, version: int) -> bytes:
        brokers = [(number, one.host, one.port, None) for number, one in self.brokers.items()]
        if version < 13:
            return cast("bytes", MetadataResponse_v5(0, brokers, self.cluster_id, 1, []).encode())
        flexible: list[object] = [(*broker, {}) for broker in brokers]
        return b"\0" + cast(
            "bytes", _Metadata_v13.RESPONSE_TYPE(0, flexible, self.cluster_id, 1, [], self.code, {}).encode()
        )


class Stage:
    """A client that has bootstrapped from a server that is no broker ("door"), and knows broker 1."""

    def __init__(self) -> None:
        self.door, self.old, self.new = Server(), Server(), Server()
        self.client: Any = None
        self.broker_watch: Any = None
        self.failures: list[ClusterChanged] = []

    async def begin(self, servers: str = "", rebootstrap_after: float = 300.0, *, is_reached: bool = True) -> None:
        """Connect to broker 1."""
        self.client = AIOKafkaClient(bootstrap_servers=self.door.address, request_timeout_ms=40_000)
        self.broker_watch = BrokerWatch(
            cast("Connections", self.client),
            servers or self.door.address,
            1.0,
            rebootstrap_after=rebootstrap_after,
            on_failure=self.failures.append,
        )
        await self.client.bootstrap()
        assert await self.client.force_metadata_update()
        assert (await self.client._get_conn(1) is not None) is is_reached

    async def updated(self) -> bool:
        """Whether a metadata update got an answer."""
        return bool(await self.client.force_metadata_update())

    def port_of(self, node: int) -> int:
        """The node's port in the metadata."""
        return int(self.client.cluster.broker_metadata(node).port)

    async def moved(self) -> float:
        """Wait until a connection to broker 1 leads to the new place. Returns seconds."""
        time = asyncio.get_running_loop().time
        began = time()
        async with asyncio.timeout(DEADLINE):
            while True:
                await self.updated()
                connection = await self.client._get_conn(1)
                if connection is not None and connection.port == self.new.port:
                    return time() - began
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """All three servers listen."""
    made = Stage()
    for one in (made.door, made.old, made.new):
        await one.start()
    made.door.brokers = made.old.brokers = {1: made.old}
    made.new.brokers = {1: made.new}
    try:
        yield made
    finally:
        if made.client is not None:
            await made.client.close()
        for one in (made.door, made.old, made.new):
            await one.stop()


@pytest.mark.parametrize("newest", [13, 5])
async def test_brokers_that_are_gone(stage: Stage, newest: int, caplog: pytest.LogCaptureFixture) -> None:
    """The configured address is queried at once, and connections to the old place are no longer used."""
    stage.door.newest = stage.old.newest = stage.new.newest = newest
    await stage.begin()
    await stage.old.stop()
    stage.door.brokers = stage.new.brokers
    assert await stage.moved() < WITHIN
    assert [one for one in caplog.records if getattr(one, "action", "") == "no_metadata"] == []


async def test_brokers_that_hang(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds the configured address is queried as well. A request to the old place fails at once."""
    assert metadata_updates._KNOWN_FIRST < WITHIN
    monkeypatch.setattr(metadata_updates, "_KNOWN_FIRST", 0.2)
    await stage.begin()
    stage.old.is_silent = True
    waiting = asyncio.ensure_future((await stage.client._get_conn(1)).send(Metadata([])))
    stage.door.brokers = stage.new.brokers
    await stage.moved()
    with contextlib.suppress(Exception):
        await asyncio.wait_for(waiting, SLACK)
    assert waiting.done()
    assert waiting.exception() is not None


async def test_a_broker_that_sends_away(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """REBOOTSTRAP_REQUIRED: all connections are closed, and the configured address is queried. That broker is not asked
    again."""
    await stage.begin()
    stage.old.code = ErrorCode.REBOOTSTRAP_REQUIRED
    stage.door.brokers = stage.new.brokers
    await stage.moved()
    await until(lambda: not stage.old.open)
    asked = len(stage.old.asked)
    assert await stage.updated()
    assert len(stage.old.asked) == asked
    (line,) = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "rebootstrap"]
    assert "broker 1 answers REBOOTSTRAP_REQUIRED" in line
    assert stage.door.address in line


async def test_no_metadata_for_too_long(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """All connections are closed, although they look healthy, and the client starts again from its address."""
    await stage.begin(rebootstrap_after=1.0)
    await stage.door.stop()
    stage.old.is_silent = True
    assert stage.old.open

    time = asyncio.get_running_loop().time
    began = time()
    async with asyncio.timeout(DEADLINE):
        while not any("closed (no metadata for" in one for one in caplog.messages):
            await stage.updated()
    assert 1.0 <= time() - began < WITHIN
    await until(lambda: not stage.old.open)
    stage.door.brokers = stage.new.brokers
    await stage.door.start(stage.door.port)
    await stage.moved()


async def test_names_are_resolved_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each attempt, so a name that now leads to another machine is followed."""
    if "uvloop" in type(asyncio.get_running_loop()).__module__:
        pytest.skip("uvloop resolves names outside of Python")
    name, leads_to, resolve = f"{unique('kafka')}.example", ["127.0.0.1"], socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        return resolve(leads_to[0] if host == name else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    await stage.begin(f"{name}:{stage.door.port}")
    await stage.old.stop()
    await stage.door.stop()
    assert not await stage.updated()
    other_door = Server(host="127.0.0.2")
    await other_door.start(stage.door.port)
    other_door.brokers = stage.new.brokers
    leads_to[0] = "127.0.0.2"
    try:
        assert await stage.moved() < WITHIN
    finally:
        await other_door.stop()


async def test_one_address_that_another_cluster_has_got(stage: Stage) -> None:
    """One of two brokers is gone, and its address belongs to another cluster. That server gets only the request for its
    cluster id, and the client continues with the other broker."""
    stage.door.brokers = stage.old.brokers = stage.new.brokers = {1: stage.old, 2: stage.new}
    await stage.begin()
    assert await stage.client._get_conn(2) is not None
    port = stage.new.port
    await stage.new.stop()
    stranger = Server()
    stranger.cluster_id = OTHER
    await stranger.start(port)
    try:
        assert await stage.client._get_conn(2) is None
        assert OTHER in stage.broker_watch._connector.reason(2)
        assert all([await stage.updated() for _ in range(5)])
        assert (stage.failures, stage.broker_watch.failure) == ([], None)
        assert set(stranger.asked) <= {METADATA, API_VERSIONS}
        assert await stage.client._get_conn(1) is not None
    finally:
        await stranger.stop()


async def test_another_cluster_at_the_configured_address(stage: Stage) -> None:
    """If nobody else answers, the client fails, with both cluster ids. It connects nowhere and requests nothing any
    more."""
    await stage.begin()
    await stage.old.stop()
    stage.door.cluster_id = OTHER
    assert not await stage.updated()
    (failure,) = stage.failures
    assert (failure.before, failure.found, failure.bootstrap_servers) == (OURS, OTHER, stage.door.address)
    assert OURS in str(failure)
    assert OTHER in str(failure)
    stage.door.cluster_id = OURS
    await stage.old.start(stage.old.port)
    asked = len(stage.door.asked)
    assert not await stage.updated()
    assert await stage.client._get_conn(1) is None
    assert (len(stage.door.asked), stage.failures) == (asked, [failure])


async def test_another_cluster_at_the_configured_address_while_ours_is_slow(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a broker of the right cluster answers, the server at the configured address does not matter."""
    monkeypatch.setattr(metadata_updates, "_KNOWN_FIRST", 0.05)
    await stage.begin()
    stage.door.cluster_id = OTHER
    stage.old.delay = 1.0
    assert await stage.updated()
    assert METADATA in stage.door.asked
    assert stage.failures == []


@pytest.mark.parametrize("value", [999, "5", None, True])
async def test_how_long_is_too_long(value: object) -> None:
    """At least a second. The option has Kafka's name, and is checked at construction."""
    from aioparallel.clients import AiokafkaClient, AiokafkaProducer  # noqa: PLC0415

    options: Any = {"metadata_recovery_rebootstrap_trigger_ms": value}
    makers: list[Callable[[], object]] = [
        lambda: AiokafkaClient("localhost:1", "group", client_options=options),
        lambda: AiokafkaProducer("localhost:1", delivery_timeout=1, consumer_options=options, producer_options={}),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError, match=r"metadata_recovery_rebootstrap_trigger_ms.*1000 to"):
            make()
    options["metadata_recovery_rebootstrap_trigger_ms"] = 60_000
    assert [bool(make()) for make in makers] == [True, True]


@pytest.mark.parametrize(("host", "trouble"), [("nowhere.invalid", "resolved"), ("127.0.0.1", "reached")])
async def test_a_wrong_advertised_listener(
    stage: Stage, host: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The address that the cluster names is in the log and in what health says, and what is wrong with it."""
    await stage.old.stop()
    stage.old.host = host
    await stage.begin(is_reached=False)
    told = f"the cluster names {stage.old.address} as its address (advertised.listeners), which cannot be {trouble}: "
    assert any(f"Broker 1: {told}" in record.getMessage() for record in caplog.records)
    assert told in stage.broker_watch._connector.reason(1)
