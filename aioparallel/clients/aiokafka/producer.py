"""The producers, on aiokafka's connections."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict, Unpack

from aioparallel.clients.aiokafka.batch_encoding import BatchEncoder
from aioparallel.clients.aiokafka.produce_requests import AiokafkaBrokers
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.clients.aiokafka.transaction_requests import TransactionalAiokafkaBrokers
from aioparallel.clients.producing import QueueingProducer, TransactionalQueueingProducer
from aioparallel.clients.producing.queues import PartitionQueues

__all__ = ["AiokafkaProducer", "AiokafkaTransactionalProducer"]


class _Options(TypedDict):
    delivery_timeout: float
    consumer_options: Mapping[str, object]
    producer_options: Mapping[str, object]


class AiokafkaProducer(QueueingProducer):
    """Sends records through aiokafka. See :class:`~aioparallel.delivery.producer.Producer`.

    ``bootstrap_servers``: comma-separated ``host:port``.
    ``delivery_timeout``: seconds from ``send`` until an unacknowledged output fails.
    ``consumer_options``: the consumer's ``client_options``. TLS, SASL, client_id and timeouts are used; the rest is
    ignored. ``producer_options``: options of ``aiokafka.AIOKafkaProducer`` by their names there, which take precedence:
    ``compression_type`` (none), ``max_batch_size`` (64 KiB), ``max_request_size`` (1 MiB; the largest output),
    ``linger_ms`` (0; how long an idle producer waits for more outputs), ``partitioner``.

    The producer is always idempotent, with ``acks=all``. Raises ConfigurationError for unknown options, and for those
    that users cannot set.
    """

    def __init__(self, bootstrap_servers: str, **options: Unpack[_Options]) -> None:
        settings = ProducerSettings(bootstrap_servers, **options)
        encoder = BatchEncoder(settings.compression, settings.request_bytes)
        super().__init__(_partition_queues(settings, encoder), partial(AiokafkaBrokers, settings), **_of(settings))


class AiokafkaTransactionalProducer(TransactionalQueueingProducer):
    """Sends records in Kafka transactions, with the offsets of a group. See
    :class:`~aioparallel.persistence.transactions.TransactionalProducer`.

    ``group_id``: the group of the offsets. Other arguments: see :class:`AiokafkaProducer`.
    """

    def __init__(self, bootstrap_servers: str, group_id: str, **options: Unpack[_Options]) -> None:
        settings = ProducerSettings(bootstrap_servers, **options)
        self.plain = partial(AiokafkaProducer, bootstrap_servers, **options)
        """Makes a producer without transactions, for outputs that belong to none."""
        encoder = BatchEncoder(settings.compression, settings.request_bytes, is_transactional=True)
        instance = options["consumer_options"].get("group_instance_id")
        super().__init__(
            _partition_queues(settings, encoder),
            lambda on_metadata: TransactionalAiokafkaBrokers(
                settings, on_metadata, group_id, None if instance is None else str(instance)
            ),
            **_of(settings),
        )


def _of(settings: ProducerSettings) -> dict[str, Any]:
    return {
        "servers": settings.bootstrap_servers,
        "delivery_timeout": settings.delivery_timeout,
        "linger": settings.linger,
        "retry_backoff": settings.retry_backoff,
    }


def _partition_queues(settings: ProducerSettings, encoder: BatchEncoder) -> PartitionQueues:
    return PartitionQueues(
        encoder,
        encoder.check,
        batch_bytes=settings.batch_bytes,
        unchecked_bytes=encoder.unchecked_bytes,
        partitioner=settings.partitioner,
    )
