"""The Kafka clients: aiokafka, behind :class:`~aioparallel.group.client.Client` and
:class:`~aioparallel.delivery.producer.Producer`.

::

    aiokafka/         the client, and every private access to aiokafka
    messages/         messages of Kafka's protocol that aiokafka lacks
    producing/        a producer that is independent of the client
    defaults.py       the client and producer of a consumer that is given none
    last_contacts.py  when each broker last answered
"""

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer, AiokafkaTransactionalProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer", "AiokafkaTransactionalProducer"]
