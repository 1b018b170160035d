"""What a reader has around a block of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer

from aioparallel import Outgoing
from aioparallel.testing import Broker
from aioparallel.testing.brokers.secured import ListenerName

__all__ = ["NOTHING", "Given"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """``before``, ``after``: lines of the reader's own. ``instead``: what is another text for this reader."""

    before: str = ""
    after: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Sequence[Outgoing]] = field(default_factory=dict)
    """On the broker at ``localhost:9092``, with these records in them; without any there is no broker."""
    compacted: Sequence[str] = ()
    """Topics more, which only Apache Kafka has."""
    ends: int = 0
    """Records after whose end ``consumer`` is stopped."""
    lines: int = 0
    """Lines after which it gets SIGTERM."""
    says: str = "(?s).*"
    """All that it prints, as a pattern."""
    starts_kafka: bool = False
    """Apache Kafka itself."""
    listener: ListenerName | None = None
    """The broker is a secured one, this listener of it at ``kafka:9093``; beside the program lie ``ca.pem``,
    certificate and key of ``me`` in ``me.pem`` and ``me.key``, and ``password``."""

    def around(self, code: str, places: Mapping[str, str]) -> str:
        """The whole program. ``places``: by what stands for them in texts, where services are now."""
        for text, other in self.instead.items():
            assert text in code, f"{text!r} is not there any more"
            code = code.replace(text, other)
        code = f"{self.before}\n{code}\n{self.after}\n"
        for name, place in places.items():
            code = code.replace(name, place)
        return code

    async def fill(self, broker: Broker) -> None:
        """Make the topics."""
        for topic, records in self.topics.items():
            # Those with times of their own are older than a broker keeps them.
            configs = {"retention.ms": "-1"} if any(one.timestamp for one in records) else None
            await broker.create_topic(topic, 2, configs)
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
                for one in records:
                    headers = list(one.headers)
                    await producer.send(topic, one.value, one.key, timestamp_ms=one.timestamp, headers=headers)
        for topic in self.compacted:
            await broker.create_topic(topic, 2, {"cleanup.policy": "compact"})


NOTHING = Given()
