"""The engine without Kafka.

::

    process.py   records of any iterable through it
    threads.py   flows on a thread of their own
    items.py     handlers and readers for parallel_map
    taking.py    starts records without workers
"""
