"""The Kafka clients behind :class:`~aioparallel.group.client.Client` and
:class:`~aioparallel.delivery.producer.Producer`: aiokafka."""

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer"]
