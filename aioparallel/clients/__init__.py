"""The Kafka clients behind :class:`~aioparallel.group.client.Client` and
:class:`~aioparallel.delivery.producer.Producer`: aiokafka.

::

    codes.py    Kafka's error codes, once
    aiokafka/   the client, and every private access to aiokafka
    producing/  a producer without a client
"""

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer"]
