"""The Kafka client behind :class:`~aioparallel.engine.client.Client`: aiokafka."""

from aioparallel.clients.aiokafka import AiokafkaClient

__all__ = ["AiokafkaClient"]
