"""Consumers and producers on the broker in memory.

::

    consuming.py         a consumer of group "g", records for it, what it commits
    deduplicating.py     the same with a topic of what was seen
    listener.py          a member of a group, in virtual time
    sending.py           sends outputs, and reads the log
    producer_queues.py   a producer's queues and a broker, each answer lost or late
    producer_world.py    a producer and three nodes under a script of faults
    stages.py            a run whose handlers are where one wants them when it ends
    ways_to_end.py       every way in which it may
"""
