"""Apache Kafka as JVM processes, on free ports with their own data: a single KRaft node that is broker and controller,
or several brokers and a separate controller.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import ClassVar, Final

from aioparallel.clients.aiokafka.admin import create_topic
from aioparallel.event_loop.waiting import to_the_end
from aioparallel.jvm.java_runtime import find_java
from aioparallel.jvm.maven import maven
from aioparallel.jvm.sets import KAFKA, KAFKA_VERSION, kafka_of
from aioparallel.records.errors import BrokerStartError, ConfigurationError, JarsMissing, JavaNotFound
from aioparallel.testing.brokers.broker import TOPIC_TIMEOUT, Broker
from aioparallel.testing.brokers.class_archive import find_archive
from aioparallel.testing.brokers.cluster_view import PartitionView
from aioparallel.testing.brokers.kafka_node import KafkaNode, KafkaProgram
from aioparallel.testing.brokers.kafka_nodes import KafkaNodes
from aioparallel.testing.brokers.ports import is_free
from aioparallel.testing.brokers.secured import Secured
from aioparallel.testing.brokers.server_properties import broker_properties, checked, replicas
from aioparallel.testing.processes.guarded import check_platform

__all__ = ["LocalKafka", "local_kafka_available"]

logger = logging.getLogger(__name__)

_POLL_INTERVAL: Final = 0.02
_MOST_BROKERS: Final = 9
_LAST_PORT: Final = 65_535


def local_kafka_available() -> tuple[bool, str]:
    """Whether LocalKafka can start on this machine, and a sentence about what was found or is missing."""
    try:
        check_platform()
        java = find_java()
    except (BrokerStartError, JavaNotFound) as error:
        return False, str(error)
    found = f"Java {java.version} was found ({java.source})"
    if KAFKA.cached() is not None:
        return True, f"{found} and the jars are cached"
    if maven() is not None:
        return True, f"{found} and Maven can fetch the jars"
    return False, f"{found}, but the jars are not cached and there is no Maven"


class LocalKafka(Broker):
    """Apache Kafka in JVM processes that end, with their data, when this process ends in any way.

    ``brokers``: number of brokers, 1 to 9. With several, each is a separate process, numbered from 1, and so is the
    controller, so that a majority of the brokers can be killed. Topics then have a replica on each broker, three at
    most, and with three replicas two must have a record (``min.insync.replicas``). Default 1: broker and controller in
    one process.
    ``server_properties``: properties that override those of :mod:`~aioparallel.testing.brokers.server_properties`, such
    as ``{"offset.metadata.max.bytes": "512"}``. Listeners, roles and directories cannot be set.
    ``heap``: each broker's largest heap, such as ``"512m"``; the process takes little more. Default 256m.
    ``compile_once``: whether Java compiles code only once, without further optimisation. A broker that lives for
    minutes then takes 40 % less CPU time and starts in half the time, but one under full load for longer is slower.
    Default: only with several brokers. The pytest fixtures set it.
    ``version``: of Apache Kafka. Maven fetches its jars the first time.
    ``port``: the first broker's port on 127.0.0.1; the next ones take the following ports. Default: free ports.
    ``secured``: additional listeners with TLS and logins, users and permissions; see :class:`Secured`.
    ``start_timeout``: seconds for the brokers to answer. Default 60.
    ``report``: gets sentences about steps that take long, such as fetching the jars the first time.

    ``kill``, ``restart``, ``pause`` and ``resume`` take a broker's number, which may be omitted if there is only one. A
    wrong number raises ConfigurationError. Linux and macOS. The data is in the system's temporary directory
    (``TMPDIR``). Methods block, ``start`` and ``restart`` for seconds. They may be called from any thread, one at a
    time for each broker.
    """

    kind: ClassVar[str] = "local"

    def __init__(
        self,
        *,
        brokers: int = 1,
        server_properties: Mapping[str, str] | None = None,
        heap: str = "256m",
        compile_once: bool | None = None,
        version: str = KAFKA_VERSION,
        port: int | None = None,
        secured: Secured | None = None,
        start_timeout: float = 60.0,
        report: Callable[[str], None] = logger.info,
    ) -> None:
        if not _is_count(brokers):
            raise ConfigurationError("brokers", brokers, f"must be a whole number from 1 to {_MOST_BROKERS}")
        if port is not None and not (type(port) is int and 1 <= port <= _LAST_PORT + 1 - brokers):
            raise ConfigurationError("port", port, f"must be a whole number from 1 to {_LAST_PORT + 1 - brokers}")
        if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", str(version)):
            raise ConfigurationError("version", version, f"must be a version of Apache Kafka, such as {KAFKA_VERSION}")
        self._count = brokers
        self._version = version
        self._port = port
        self._secured = secured
        self._properties = {**broker_properties(brokers), **checked(server_properties)}
        self._heap = heap
        self._compile_once = brokers > 1 if compile_once is None else compile_once
        self._start_timeout = start_timeout
        self._report = report
        self._nodes: KafkaNodes | None = None

    def __repr__(self) -> str:
        where = f"at {self.bootstrap_servers}" if self._nodes else "not running"
        return f"<LocalKafka {self._version} {where}>"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all brokers, separated by commas. Stays the same through ``kill`` and ``restart``."""
        return ",".join(node.address for node in self._running().brokers.values())

    @property
    def secured(self) -> Secured:
        """The secured listeners. Raises ConfigurationError if there are none."""
        if self._secured is None:
            raise ConfigurationError("secured", None, "this LocalKafka has none: use LocalKafka(secured=Secured(...))")
        return self._secured

    def address(self, number: int | None = None) -> str:
        """``host:port`` of one broker."""
        return self._broker(number).address

    @property
    def numbers(self) -> tuple[int, ...]:
        """The brokers' numbers, which are Kafka's ``node.id``, from 1."""
        return tuple(range(1, self._count + 1))

    @property
    def pid(self) -> int | None:
        """The JVM's process id of a single broker; None before the start."""
        if self._count > 1:
            raise ConfigurationError("pid", None, f"there are {self._count} brokers; use pids[number]")
        return self._nodes.brokers[1].pid if self._nodes else None

    @property
    def pids(self) -> dict[int, int]:
        """The JVMs' process ids by broker number, including those of killed brokers. Empty before the start."""
        nodes = self._nodes.brokers if self._nodes else {}
        return {number: node.pid for number, node in nodes.items() if node.pid is not None}

    def start(self) -> None:
        """Start the brokers and wait until each answers. One takes about 3 s once the jars are cached, three take
        more."""
        if self._nodes is not None:
            return
        check_platform()
        try:
            java, jars = find_java(), kafka_of(self._version).fetch(self._report)
        except (JavaNotFound, JarsMissing) as error:
            raise BrokerStartError(str(error)) from error
        program = KafkaProgram(java, jars, compile_once=self._compile_once, archive=find_archive(java, jars))
        self._check_ports()
        self._nodes = KafkaNodes(self._count, program, self._heap, self._properties, self._port, self._secured)
        atexit.register(self.stop)
        try:
            self._nodes.start(self._start_timeout)
            if self._secured is not None:
                self._secured.started()
        except BaseException:
            self.stop()
            raise

    def _check_ports(self) -> None:
        for port in range(self._port, self._port + self._count) if self._port is not None else ():
            if not is_free(port):
                raise BrokerStartError(f"port {port} on 127.0.0.1 is taken; leave port out, or take another")

    def stop(self) -> None:
        """End all processes at once and delete their data."""
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            nodes.close()
            if self._secured is not None:
                self._secured.stopped()
            atexit.unregister(self.stop)

    def kill(self, number: int | None = None) -> None:
        """Kill a broker as a power cut would (SIGKILL). Its data stays, for ``restart``."""
        self._broker(number).kill()

    def restart(self, number: int | None = None) -> None:
        """Start a broker again with the same port and data, after a clean stop if it runs. Takes about 3 s.

        After ``kill`` it takes about 5 s, because the controller first waits for the killed broker's session to end.
        """
        node = self._broker(number)
        node.stop_cleanly()
        node.start()
        self._running().wait_until_ready([node], self._start_timeout)

    def pause(self, number: int | None = None) -> None:
        """Make a broker hang (SIGSTOP): connections stay open and nothing answers. Returns when it has stopped."""
        self._broker(number).pause()

    def resume(self, number: int | None = None) -> None:
        """Let a paused broker continue."""
        self._broker(number).resume()

    @contextlib.asynccontextmanager
    async def down(self, number: int | None = None, *, hang: bool = False) -> AsyncIterator[None]:
        """Keep a broker down during the block: killed, or with ``hang`` paused with its connections open.

        It is up again, with its data, after the block, however that ends, unless the block has stopped all brokers."""
        down, up = (self.pause, self.resume) if hang else (self.kill, self.restart)
        self._broker(number)
        try:
            await to_the_end(asyncio.to_thread(down, number))
            yield
        finally:
            if self._nodes is not None:
                await to_the_end(asyncio.to_thread(up, number))

    def give_up_starting(self) -> None:
        """End the processes, so that ``start`` fails."""
        if self._nodes is not None:
            self._nodes.close()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the brokers' output (warnings and errors), for messages."""
        nodes = self._running()
        if self._count == 1:
            return nodes.brokers[1].log_tail(lines)
        return "\n".join(f"--- {node}:\n{node.log_tail(lines)}" for node in nodes)

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic; see :meth:`Broker.create_topic`.

        With several brokers it has a replica on each, three at most. Returns when every partition has a leader, all its
        replicas are in sync, and all brokers know that. Raises BrokerStartError if all brokers are killed or paused. If
        some are, a TimeoutError names them."""
        copies = replicas(self._count)
        brokers = self._running().brokers.values()
        outages = {node: outage for node in brokers if (outage := node.outage()) is not None}
        names = ", ".join(f"{node.name} {outage}" for node, outage in outages.items())
        asked = [node for node in brokers if node not in outages]
        if not asked:
            raise BrokerStartError(f"no broker can create topic {name!r}: {names}")
        servers = ",".join(node.address for node in asked)
        try:
            await create_topic(servers, name, partitions, configs, TOPIC_TIMEOUT, copies)
            if self._count > 1:
                await self._until_in_sync(asked, name, partitions, copies)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {names}" if names else str(error)) from error

    async def leaders(self, topic: str) -> dict[int, int]:
        """The number of the broker that leads each partition; partitions without a leader are left out.

        This is the newest view of the brokers that are neither killed nor paused. A hung broker costs a second. Raises
        BrokerStartError if no broker answers.
        """
        return {partition: view.leader for partition, view in (await self._look(topic)).items() if view.leader >= 0}

    async def in_sync(self, topic: str) -> dict[int, frozenset[int]]:
        """The numbers of each partition's in-sync brokers; obtained like ``leaders``."""
        return {partition: view.in_sync for partition, view in (await self._look(topic)).items()}

    async def _until_in_sync(self, asked: Sequence[KafkaNode], topic: str, partitions: int, copies: int) -> None:
        nodes = self._running()
        up = {number for number, node in nodes.brokers.items() if node in asked}
        deadline = time.monotonic() + TOPIC_TIMEOUT
        for node in asked:
            while True:
                view = await asyncio.to_thread(nodes.view, node, topic)
                known = view.partitions.values() if view else ()
                # Until its session ends, a killed or paused broker counts as in sync for the controller.
                if len(known) == partitions and all(len(one.in_sync & up) == copies for one in known):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{node} does not see all {copies} replicas of topic {topic!r} in sync within "
                        f"{TOPIC_TIMEOUT:g} s; are all brokers up? It sees {known}"
                    )
                await asyncio.sleep(_POLL_INTERVAL)

    async def _look(self, topic: str) -> dict[int, PartitionView]:
        nodes = self._running()
        asked = [node for node in nodes.brokers.values() if not node.paused]
        views = await asyncio.gather(*(asyncio.to_thread(nodes.view, node, topic) for node in asked))
        known: dict[int, PartitionView] = {}
        for view in views:
            for partition, seen in view.partitions.items() if view else ():
                # A broker that has just restarted may have an old view.
                if partition not in known or seen.leader_epoch > known[partition].leader_epoch:
                    known[partition] = seen
        if not any(views):
            raise BrokerStartError(f"no broker of {self!r} answers. Their output:\n{self.log_tail()}")
        return known

    def _running(self) -> KafkaNodes:
        if self._nodes is None:
            raise BrokerStartError("Apache Kafka is not running; call start() first")
        return self._nodes

    def _broker(self, number: int | None) -> KafkaNode:
        brokers = self._running().brokers
        if number is None and self._count == 1:
            number = 1
        if number not in brokers:
            raise ConfigurationError("broker number", number, f"must be one of {', '.join(map(str, self.numbers))}")
        return brokers[number]


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST_BROKERS
