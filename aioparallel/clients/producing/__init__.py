"""A producer that is independent of a Kafka client: batching, ordering, retries and results.

::

    producer.py             QueueingProducer, which implements ``delivery/producer.py``: coroutines and timers
    transactional.py        the same within Kafka transactions
    request_sender.py       sends requests, and handles answers and brokers that do not answer
    brokers.py              what the producer needs from a cluster; implemented by a client
    send_errors.py          detects that nothing can be sent at all
    overview.py             outstanding outputs by broker
    queues.py               all outstanding outputs, by topic and partition
    topic.py                chooses the partition of an output
    partition_queue.py      the queue of one partition, and its batches
    numbering.py            producer id, epoch and sequence number of a partition's next batch
    pending.py              pending outputs, and the ``send`` call they belong to
    open_requests.py        unanswered requests by node
    produce_answers.py      what a broker's answer means for a batch
    partitioning.py         the key hash of Kafka's producers

``queues.py`` and the files below it are synchronous: nothing awaits, and the time is passed in.
"""

from aioparallel.clients.producing.producer import QueueingProducer
from aioparallel.clients.producing.transactional import TransactionalQueueingProducer

__all__ = ["QueueingProducer", "TransactionalQueueingProducer"]
