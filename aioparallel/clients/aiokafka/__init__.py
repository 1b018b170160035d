"""The aiokafka client, and every private access to aiokafka that it needs (aiokafka 0.14).

aiokafka's public calls are not enough: ``getmany`` polls, may not yield and cannot take a quota for each
partition; ``commit`` retries for ever and takes whatever generation is current when it is sent; ``committed``
hides the text stored beside the offset. What is used instead is declared in ``internals.py``, one protocol for
each class of aiokafka; ``tests/contract/test_aiokafka_private.py`` fails when aiokafka changes any of it.

::

    client.py      AiokafkaClient, the interface: each call with its deadline
    settings.py    options in, a configured consumer out
    fetching.py    one walk over the fetched data, with a quota for each partition
    membership.py  aiokafka's callbacks turned into assigned, revoked and lost
    static_member.py  two processes with one group_instance_id; ``heartbeats.py``: heartbeats that name it
    offsets.py     commits with a generation, committed offsets with their texts
    metadata.py    topics and log ends, without creating topics
    connecting.py  finding a broker that answers, and closing whatever there is
    connector.py   makes connections while the client runs, and replaces them before their login ends
    secure_connection.py  one connection: secrets as they are now, refused tokens told
    trust.py       TLS and logins that fail, in words
    errors.py      aiokafka's errors in our words
    log_noise.py   log lines that mean nothing to the user
    internals.py   what of aiokafka is used
    broker_watch.py  keeps brokers that hang from holding up the others
    log_ends_watch.py  where logs end, while no fetch tells it
    checking.py    options checked when constructed
    log_reading.py partitions read beside the group
    admin.py       topics and groups looked after; ``admin_internals.py``: what of aiokafka's admin is used

    producer.py            AiokafkaProducer; how it works is in ``clients/producing/``
    producer_settings.py   options in, connections out
    produce_requests.py    the requests of a producer, one attempt each
    decoding.py            records of a fetch, as they are asked for
    encoding.py            outputs written as record batches
    transaction_requests.py, transaction_messages.py  transactions, whose messages aiokafka does not know
    producer_internals.py  what of aiokafka is used for producing
"""

from aioparallel.clients.aiokafka.client import AiokafkaClient
from aioparallel.clients.aiokafka.producer import AiokafkaProducer, AiokafkaTransactionalProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer", "AiokafkaTransactionalProducer"]
