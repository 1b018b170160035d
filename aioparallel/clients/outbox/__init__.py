"""A producer without a Kafka client: what is sent, in which order, how often, and how it ends.

::

    producer.py         QueueingProducer, the engine's producer interface: coroutines and timers
    brokers.py          what it needs of a cluster; a client implements it
    outbox.py           everything outstanding, by topic and partition
    topic.py            which partition an output goes to
    partition_queue.py  what waits for one partition, and how it becomes batches
    deliveries.py       what is outstanding of one ``send``
    verdicts.py         what an answer means for a batch
    partitioning.py     the hash of Kafka's producers

From ``outbox.py`` downwards nothing awaits, and the time is passed in.
"""

from aioparallel.clients.outbox.producer import QueueingProducer

__all__ = ["QueueingProducer"]
