"""PriorityProducer: sends records with a priority."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from aioparallel.clients import AiokafkaProducer
from aioparallel.clients.aiokafka.producer_settings import check_producers_connection
from aioparallel.config.callables import check_interface
from aioparallel.config.options import Options, checked_text
from aioparallel.config.policies import Producing
from aioparallel.config.security import Security
from aioparallel.config.unknown_options import refuses_others
from aioparallel.delivery.producer import Producer, SentOutput
from aioparallel.event_loop.waiting import to_the_end
from aioparallel.queues.priority.names import check_priorities, priority_topic
from aioparallel.records.errors import ConfigurationError, ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition

__all__ = ["PriorityProducer"]


@refuses_others
class PriorityProducer:
    """Sends records to topics of several priorities, see :class:`PriorityConsumer`.

    ::

        async with PriorityProducer(priorities=3, bootstrap_servers="localhost:9092") as producer:
            await producer.send("jobs", b"now, please", priority=2)

    ``priorities``: how many there are.
    ``bootstrap_servers``: ``"host:port"``, several separated by commas.
    ``producing``: how records are produced, see :class:`~aioparallel.Producing`.
    ``security``: TLS and login, see :class:`~aioparallel.Security`.
    ``client_options``: options of the connections, by aiokafka's names: TLS, SASL, ``client_id``, timeouts.
    ``connect_timeout``: seconds for connecting.
    ``producer``: another producing client in place of aiokafka's, e.g. an ``InMemoryProducer``.

    Handlers do not need one: they return ``Outgoing(priority_topic("jobs", 2), ...)``. Raises ConfigurationError.
    """

    def __init__(
        self,
        *,
        priorities: int,
        bootstrap_servers: str = "localhost:9092",
        producing: Producing | None = None,
        security: Security | None = None,
        client_options: Mapping[str, object] | None = None,
        connect_timeout: float = 30.0,
        producer: Producer | None = None,
    ) -> None:
        check_priorities(priorities)
        self.priorities = priorities
        """The number of priorities."""
        self._options = options = Options(
            producing=Producing() if producing is None else producing,
            security=security,
            client_options={} if client_options is None else client_options,
            connect_timeout=connect_timeout,
        )
        check_producers_connection(options.client_options)
        if producer is not None:
            check_interface(producer, "producer", Producer)
        self._producer: Producer = producer or AiokafkaProducer(
            checked_text("bootstrap_servers", bootstrap_servers),
            delivery_timeout=options.producing.delivery_timeout,
            consumer_options=options.connecting_options,
            producer_options=options.producing.client_options,
        )

    async def __aenter__(self) -> Self:
        """Connect. Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized."""
        try:
            await self._producer.start(self._options.connect_timeout)
        except BaseException:
            await to_the_end(self._producer.stop(0))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for unacknowledged records, at most ``delivery_timeout`` seconds, and disconnect."""
        await to_the_end(self._producer.stop(self._options.producing.delivery_timeout))

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        priority: int = 0,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Produced:
        """Send a record to ``topic`` with this priority; 0 is the lowest.

        The other arguments are those of :class:`~aioparallel.Outgoing`. Returns the record's place once the brokers
        have acknowledged it. Concurrent calls (``asyncio.gather``, a task group) are sent in batches.

        Raises ConfigurationError for an unknown priority, TypeError for a record that cannot be produced, ProduceFailed
        if it was not acknowledged. A cancelled call may still have sent the record.
        """
        if type(priority) is not int or not 0 <= priority < self.priorities:
            raise ConfigurationError("priority", priority, f"must be 0 to {self.priorities - 1}, the highest")
        name = priority_topic(checked_text("topic", topic), priority)
        place: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()

        def ended(result: Produced | ProduceFailed) -> None:
            if place.done():
                return  # this call was cancelled
            if isinstance(result, ProduceFailed):
                place.set_exception(result)
            else:
                place.set_result(result)

        self._producer.send_one(SentOutput(Outgoing(name, value, key, headers, partition, timestamp), ended))
        return await place

    async def partitions(self, topic: str) -> set[TopicPartition]:
        """Returns a topic's partitions of all priorities. Raises TimeoutError after ``connect_timeout`` seconds."""
        names = [priority_topic(topic, priority) for priority in range(self.priorities)]
        return await self._producer.partitions(names, self._options.connect_timeout)
