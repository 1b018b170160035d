"""Topics with dead letters on a real broker, and the command that works with them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.records.record import Failure, Headers, Origin
from aioparallel.testing import LocalKafka
from tests.support.command_line import invoke


@dataclass(frozen=True)
class Sent:
    """A letter to be written: into ``partition`` of the topic of letters, from ``origin``."""

    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: Headers = (("trace", b"abc"),)
    partition: int = 0
    origin: tuple[str, int, int] | None = None
    error: str = "ValueError"
    message: str = "no such order"
    seconds_ago: float = 60.0


@dataclass
class Letters:
    """A topic of letters and the topic they came from, each new, on one broker."""

    broker: LocalKafka
    partitions: int = 1
    name: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.topic = f"{self.name}.dlq"
        self.group = f"{self.name}-group"

        async def create() -> None:
            await self.broker.create_topic(self.name, 2)
            await self.broker.create_topic(self.topic, self.partitions)

        asyncio.run(create())

    def write(self, *letters: Sent, transaction: str = "") -> None:
        """Write them, in this order; ``transaction``: "abort" writes them into one that is aborted."""
        asyncio.run(self._write(letters, transaction))

    async def _write(self, letters: Sequence[Sent], transaction: str) -> None:
        # All replicas: on several brokers the end of the log comes to where it was written only then.
        options = {"transactional_id": self.name} if transaction else {"acks": "all"}
        async with AIOKafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers, linger_ms=5, **options
        ) as producer:
            if transaction:
                await producer.begin_transaction()
            sends = [
                await producer.send(
                    self.topic, one.value, one.key, one.partition, headers=list(self.headers(one, number))
                )
                for number, one in enumerate(letters)
            ]
            await asyncio.gather(*sends)
            if transaction:
                await producer.abort_transaction()

    def headers(self, one: Sent, number: int) -> Headers:
        """The record's own and the letter's."""
        at = time.time() - one.seconds_ago + number / 1000
        failure = Failure(at, one.error, one.message)
        origin = Origin(*(one.origin or (self.name, 0, number)), timestamp=round(at * 1000) - 500)
        return write_letter(one.headers, Letter(origin, "billing", 3, failure, failure, "Traceback: here\n"))

    def write_stranger(self, value: bytes = b"stranger") -> None:
        """A record that is no letter."""

        async def write() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, acks="all") as producer:
                await producer.send_and_wait(self.topic, value, partition=0)

        asyncio.run(write())

    def run(self, command: str, *options: str, code: int = 0, group: str | None = None) -> tuple[str, str]:
        """Run the command; its standard output and standard error."""
        where = {"AIOPARALLEL_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers}
        result = invoke("dlq", command, self.topic, "--group", group or self.group, *options, environment=where)
        assert result.exit_code == code, result.output
        assert "Traceback (most" not in result.output
        return result.stdout, result.stderr

    def listed(self, *options: str) -> list[tuple[int, int]]:
        """Partition and offset of each letter that list gives."""
        return [(one["partition"], one["offset"]) for one in self.objects("list", *options)]

    def objects(self, command: str, *options: str) -> list[dict[str, Any]]:
        """What the command prints with --json."""
        output, _ = self.run(command, "--json", *options)
        return [json.loads(line) for line in output.splitlines()]

    def read(self, topic: str | None = None) -> list[Any]:
        """All records of the topic the letters came from, or of another; partition by partition."""
        return asyncio.run(self._read(topic or self.name))

    async def _read(self, topic: str) -> list[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.broker.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            partitions = [TopicPartition(topic, number) for number in range(2)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[Any] = []
            for tp in partitions:
                while await consumer.position(tp) < ends[tp]:
                    found += (await consumer.getmany(tp, timeout_ms=1000)).get(tp, [])
            return found
        finally:
            await consumer.stop()

    def committed(self) -> dict[int, tuple[int, str]]:
        """What the group of marks has committed."""

        async def ask() -> dict[int, tuple[int, str]]:
            async with Admin(self.broker.bootstrap_servers) as admin:
                found = await admin.committed(self.group)
            return {tp.partition: (one.offset, one.metadata) for tp, one in found.items()}

        return asyncio.run(ask())
