"""The aiokafka client, and every private access to aiokafka that it needs (aiokafka 0.14).

aiokafka's public methods are not sufficient. ``getmany`` polls, may not yield to the loop and has no quota per
partition. ``commit`` retries for ever, with the generation that is current when it sends. ``committed`` does not return
the commit metadata. ``internals.py`` declares what is used instead, as one protocol for each class of aiokafka.
``tests/contract/test_aiokafka_private.py`` fails when aiokafka changes any of it.

::

    client.py      AiokafkaClient, the client interface: each call with its deadline
    settings.py    turns options into a configured consumer
    fetching.py    one walk over the fetched data, with a quota for each partition
    membership.py  turns aiokafka's callbacks into assigned, revoked and lost
    static_member.py  two processes with one group_instance_id; ``heartbeats.py``: heartbeats that carry it
    offset_requests.py     commits with a generation; committed offsets with their metadata
    metadata.py    topics and log ends, without creating topics
    connecting.py  finds a broker that answers; closes clients
    connector.py   opens connections while the client runs, and replaces them before their login expires
    secure_connection.py  one connection: reads current secrets, reports refused tokens
    trust.py       explains failures of TLS and login
    aiokafka_errors.py      translates aiokafka's errors
    log_noise.py   suppresses log lines that mean nothing to the user
    internals.py   the parts of aiokafka that are used
    broker_watch.py  keeps brokers that hang from holding up the others
    log_ends_watch.py  reads log ends while no fetch reports them
    checking.py    checks options at construction
    log_reading.py reads partitions outside the group
    admin.py       manages topics and groups; ``admin_internals.py``: the parts of aiokafka's admin client it uses
    metadata_updates.py  metadata from the first broker that answers; ``bootstrapping.py``: or from configured addresses
    first_answer.py  asks several brokers, and uses the first answer
    log_identity.py  detects logs that were replaced or truncated
    read_replicas.py  chooses the follower to read from
    fetch_responses.py   keeps the bytes of fetch responses; ``raw_batches.py``: decodes what aiokafka cannot
    eager_tasks.py  detects event loops that aiokafka does not support
    metadata_messages.py, offset_messages.py  requests that aiokafka lacks; ``message_classes.py`` makes their classes

    producer.py            AiokafkaProducer; ``clients/producing/`` contains its logic
    producer_settings.py   turns options into connections
    produce_requests.py    the requests of a producer, one attempt each
    decoding.py            decodes fetched records on demand
    batch_encoding.py            encodes outputs as record batches
    transaction_requests.py, transaction_messages.py  transactions, with messages that aiokafka lacks
    producer_internals.py  the parts of aiokafka that producing uses
"""

from aioparallel.clients.aiokafka.client import AiokafkaClient
from aioparallel.clients.aiokafka.producer import AiokafkaProducer, AiokafkaTransactionalProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer", "AiokafkaTransactionalProducer"]
