"""The Kafka clients behind :class:`~aioparallel.group.client.Client` and
:class:`~aioparallel.delivery.producer.Producer`: aiokafka.

::

    aiokafka/   the client, and every private access to aiokafka
    producing/  a producer without a client
"""

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer, AiokafkaTransactionalProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer", "AiokafkaTransactionalProducer"]
