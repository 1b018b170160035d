"""The Kafka clients behind :class:`~aioparallel.group.client.Client` and
:class:`~aioparallel.engine.producer.Producer`: aiokafka."""

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer"]
