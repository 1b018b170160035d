"""The aiokafka client, and every private access to aiokafka that it needs (aiokafka 0.14).

aiokafka's public methods are not sufficient. ``getmany`` polls, may not yield to the loop and has no quota per
partition. ``commit`` retries for ever, with the generation that is current when it sends. ``committed`` does not return
the commit metadata. ``internals.py`` declares what is used instead, as one protocol for each class of aiokafka.
``tests/contract/test_aiokafka_private.py`` fails when aiokafka changes any of it.

::

    client.py               AiokafkaClient, the client interface: each call with its deadline
    settings.py             turns options into a configured consumer; ``checking.py``: checks their values
    internals.py            the parts of aiokafka that are used
    eager_tasks.py          detects event loops that aiokafka does not support
    aiokafka_errors.py      translates aiokafka's errors
    log_noise.py            suppresses log lines that mean nothing to the user

  Connections:

    connecting.py           finds a broker that answers, starts and closes clients
    connector.py            opens connections while a client runs, and replaces them before their login expires
    secure_connection.py    one connection: reads current secrets, reports refused tokens
    trust.py                explains failures of TLS and login
    broker_watch.py         keeps brokers that hang from holding up the others
    metadata_updates.py     metadata from the first broker that answers
    bootstrapping.py        metadata from the configured addresses, if no known broker answers
    first_answer.py         asks several brokers, and uses the first answer

  Groups and offsets:

    membership.py           turns aiokafka's callbacks into assigned, revoked and lost
    static_member.py        two processes with one group_instance_id
    offset_requests.py      commits with a generation; committed offsets with their metadata
    admin.py                manages topics and groups

  Reading:

    fetching.py             one walk over the fetched data, with a quota for each partition
    fetch_responses.py      keeps the bytes of fetch responses
    decoding.py             decodes fetched records on demand
    raw_batches.py          decodes what aiokafka cannot
    read_replicas.py        chooses the follower to read from
    metadata.py             topics and log ends, without creating topics
    log_ends_watch.py       reads log ends while no fetch reports them
    log_identity.py         detects logs that were replaced or truncated
    log_reading.py          reads partitions outside the group

  Producing, with the logic of ``clients/producing/``:

    producer.py             AiokafkaProducer
    producer_settings.py    turns options into connections
    batch_encoding.py       encodes outputs as record batches
    produce_requests.py     the requests of a producer, one attempt each
    transaction_requests.py those of a transactional producer

  Messages that aiokafka lacks:

    message_classes.py      makes their classes from definitions
    group_messages.py       metadata_messages.py       transaction_messages.py
    typed_requests.py       sends those of ``clients/messages/``

  Share groups:

    share_client.py         AiokafkaShareClient; names the modules that it consists of
    acquired_records.py     decodes acquired records
"""

from aioparallel.clients.aiokafka.client import AiokafkaClient
from aioparallel.clients.aiokafka.producer import AiokafkaProducer, AiokafkaTransactionalProducer

__all__ = ["AiokafkaClient", "AiokafkaProducer", "AiokafkaTransactionalProducer"]
