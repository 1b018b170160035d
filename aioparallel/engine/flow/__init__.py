"""The engine without Kafka: items of any kind, fed and read in lists.

::

    feeding.py      feeds iterables of all kinds to a flow
    flow.py         runs items of any kind; fed and read in lists
    loop_thread.py  flows in their own thread, for programs that are not asynchronous
    sizes.py        measures the memory of items
    work.py         describes how items are processed without Kafka
"""
