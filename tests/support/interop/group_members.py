"""Members of one consumer group through three clients: ours, librdkafka and Kafka's own in Java.

Each handles all records of its partitions, and commits what it has handled before it gives a partition away.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from aioparallel import ParallelConsumer, Record
from aioparallel.config.options import OptionFields
from aioparallel.jvm.sets import KAFKA
from aioparallel.testing.processes import Child
from tests.support.interop.group import Group, Place
from tests.support.interop.java_programs import JavaProgramsMissing
from tests.support.waiting import DEADLINE

__all__ = ["KINDS", "Kind", "Member", "Protocol", "member_of"]

Protocol = Literal["classic", "consumer"]
Kind = Literal["ours", "librdkafka", "java"]
KINDS: Final[Sequence[Kind]] = ("ours", "librdkafka", "java")

_SESSION, _HEARTBEAT = 6.0, 0.3
"""Seconds, of members of the classic protocol."""
_PROGRAM: Final = Path(__file__).parent / "members" / "GroupMember.java"
_JVM: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class Member(ABC):
    """An async context manager: it joins, and leaves at the end, or before with :meth:`leave`.

    ``has``: its partitions. ``ran``: the records that it has handled, and how often. ``lost``: how often it lost
    partitions.
    """

    def __init__(self, group: Group, protocol: Protocol) -> None:
        self.group = group
        self.protocol: Protocol = protocol
        self.ran: Counter[Place] = Counter()
        self.lost = 0
        self._is_over = False

    @property
    @abstractmethod
    def has(self) -> frozenset[int]:
        """Its partitions."""

    async def __aenter__(self) -> Self:
        await self._join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Commit, and leave the group."""
        if not self._is_over:
            self._is_over = True
            async with asyncio.timeout(DEADLINE):
                await self._leave()

    @abstractmethod
    def check(self) -> None:
        """Raises AssertionError if it has ended by itself."""

    @abstractmethod
    async def _join(self) -> None: ...

    @abstractmethod
    async def _leave(self) -> None: ...


class OurMember(Member):
    """A ``ParallelConsumer``."""

    def __init__(self, group: Group, protocol: Protocol) -> None:
        super().__init__(group, protocol)
        options: OptionFields = {"group_protocol": "consumer"}
        if protocol == "classic":
            options = {"session_timeout": _SESSION, "heartbeat_interval": _HEARTBEAT}
        self.consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
            group.topic, bootstrap_servers=group.bootstrap_servers, group_id=group.name, **options
        )
        self._running: asyncio.Task[None] | None = None

    @property
    def has(self) -> frozenset[int]:
        if self._is_over or not self.consumer.health().running:
            return frozenset()
        return frozenset(partition.partition for partition in self.consumer.stats().partitions)

    def check(self) -> None:
        assert self._running is not None
        assert self._is_over or not self._running.done(), f"our member ended: {self._running!r}"

    async def _join(self) -> None:
        async def handle(record: Record) -> None:
            self.ran[Place(record.partition, record.offset)] += 1

        async def run() -> None:
            async with self.consumer:
                await self.consumer.run(handle)

        self._running = asyncio.create_task(run())

    async def _leave(self) -> None:
        self.consumer.stop()
        assert self._running is not None
        await self._running


class LibrdkafkaMember(Member):
    """``confluent_kafka.Consumer`` in a thread."""

    def __init__(self, group: Group, protocol: Protocol) -> None:
        super().__init__(group, protocol)
        settings = {
            "bootstrap.servers": group.bootstrap_servers,
            "group.id": group.name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 3,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": int(_SESSION * 1000), "heartbeat.interval.ms": int(_HEARTBEAT * 1000)}
        self._consumer = Consumer(settings)
        self._has: set[int] = set()
        self._running: asyncio.Future[None] | None = None

    @property
    def has(self) -> frozenset[int]:
        return frozenset(self._has)

    def check(self) -> None:
        assert self._running is not None
        assert self._is_over or not self._running.done(), f"librdkafka's member ended: {self._running!r}"

    async def _join(self) -> None:
        self._running = asyncio.ensure_future(asyncio.to_thread(self._run))

    async def _leave(self) -> None:
        assert self._running is not None
        await self._running

    def _run(self) -> None:
        def gone(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._has.difference_update(one.partition for one in partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self.lost += 1
            gone(consumer, partitions)

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._has.update(one.partition for one in partitions)

        self._consumer.subscribe([self.group.topic], on_assign=assigned, on_revoke=gone, on_lost=lost)
        try:
            while not self._is_over:
                # Callbacks run within consume. So all that was handled is committed before partitions go.
                for message in self._consumer.consume(100, 0.1):
                    if (error := message.error()) is not None:
                        raise KafkaException(error)
                    self.ran[Place(message.partition() or 0, message.offset() or 0)] += 1
                    self._commit(message)
        finally:
            self._consumer.close()
            self._has.clear()

    def _commit(self, message: Any) -> None:
        for tried in itertools.count():
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.STALE_MEMBER_EPOCH or tried > 100:
                    raise
                self._consumer.poll(0.0)
            else:
                return


class JavaMember(Member):
    """``KafkaConsumer`` in a process, by the program GroupMember."""

    def __init__(self, group: Group, protocol: Protocol, log: Path) -> None:
        super().__init__(group, protocol)
        java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
        if java is None or shutil.which("javac", path=str(Path(java).resolve().parent)) is None:
            raise JavaProgramsMissing("no JDK in JAVA_HOME or on the PATH; a runtime cannot run a program's source")
        given = (group.bootstrap_servers, group.topic, group.name, protocol)
        command = [java, *_JVM, "-cp", f"{KAFKA.fetch()}/*", str(_PROGRAM), *given]
        self._child = Child(f"Java member ({protocol})", command, log=log)
        self._has: set[int] = set()
        self._heard: asyncio.Task[None] | None = None

    @property
    def has(self) -> frozenset[int]:
        return frozenset(self._has)

    def check(self) -> None:
        assert self._is_over or self._child.running, f"the Java member ended{self._child.last_words()}"

    async def _join(self) -> None:
        await self._child.start()
        self._heard = asyncio.create_task(self._hear())

    async def _leave(self) -> None:
        try:
            with suppress(ConnectionError):
                await self._child.say("")
            await self._child.ended(DEADLINE)
            assert self._heard is not None
            await self._heard
        finally:
            await self._child.stop()

    async def _hear(self) -> None:
        changes: dict[str, Callable[[set[int]], None]] = {
            "has": self._has.update,
            "gone": self._has.difference_update,
            "lost": self._has.difference_update,
        }
        async for line in self._child.lines():
            word, *numbers = line.split()
            if word == "ran":
                self.ran[Place(int(numbers[0]), int(numbers[1]))] += 1
            else:
                self.lost += word == "lost"
                changes[word]({int(number) for number in numbers})


def member_of(kind: Kind, group: Group, logs: Path, protocol: Protocol = "consumer") -> Member:
    """A member, not started. Raises JavaProgramsMissing."""
    if kind == "ours":
        return OurMember(group, protocol)
    if kind == "librdkafka":
        return LibrdkafkaMember(group, protocol)
    return JavaMember(group, protocol, logs / f"java-{len(list(logs.glob('java-*')))}.log")
