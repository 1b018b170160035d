"""A producer without a Kafka client: what is sent, in which order, how often, and how it ends.

::

    producer.py         QueueingProducer, behind ``delivery/producer.py``: coroutines and timers
    transactional.py    the same within Kafka's transactions
    request_sender.py   requests in flight, and brokers that do not answer them
    brokers.py          what it needs of a cluster; a client implements it
    trouble.py          whether anything can be sent at all
    overview.py         what waits for which broker
    queues.py           everything outstanding, by topic and partition
    topic.py            which partition an output goes to
    partition_queue.py  what waits for one partition, and how it becomes batches
    numbering.py        producer id, epoch and sequence number of a partition's next batch
    pending.py          outputs on their way, and the ``send`` they came with
    requests.py         which node owes an answer, and since when
    answers.py          what an answer means for a batch
    partitioning.py     the hash of Kafka's producers

From ``queues.py`` downwards nothing awaits, and the time is passed in.
"""

from aioparallel.clients.producing.producer import QueueingProducer
from aioparallel.clients.producing.transactional import TransactionalQueueingProducer

__all__ = ["QueueingProducer", "TransactionalQueueingProducer"]
