"""Topics of several priorities, compatible with Flipkart's priority-kafka-client 1.0.0.

::

    names.py             topics and groups of a priority                                          pure
    budget.py            how many records of each priority a poll may return: shares and bursts   pure
    client.py            combines the clients of all priorities
    planner.py           plans the next poll
    weighted_sharing.py  the extension of the consumer
    consumer.py          PriorityConsumer
    producer.py          PriorityProducer

``engine/schedule/fairness.py`` decides which records start.
"""

from aioparallel.queues.priority.consumer import PriorityConsumer
from aioparallel.queues.priority.names import priority_group, priority_of, priority_topic
from aioparallel.queues.priority.producer import PriorityProducer

__all__ = ["PriorityConsumer", "PriorityProducer", "priority_group", "priority_of", "priority_topic"]
