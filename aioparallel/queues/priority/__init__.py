"""Topics of several priorities, compatible with Flipkart's priority-kafka-client 1.0.0.

::

    names.py      topics and groups of a priority                                    pure
    budget.py     how many records a poll may bring of each: parts, windows, bursts  pure
    client.py     one client made of a member for each priority: polls
    planner.py    what the next poll asks for
    consumer.py   PriorityConsumer
    producer.py   PriorityProducer

Which records start is decided in ``engine/schedule/fairness.py``.
"""

from aioparallel.queues.priority.consumer import PriorityConsumer
from aioparallel.queues.priority.names import priority_group, priority_of, priority_topic
from aioparallel.queues.priority.producer import PriorityProducer

__all__ = ["PriorityConsumer", "PriorityProducer", "priority_group", "priority_of", "priority_topic"]
