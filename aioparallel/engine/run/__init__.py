"""The workers, and all parts of the engine together.

::

    drains.py     waits until nothing of some sources is in flight or producing
    processor.py  puts all of these together
    workers.py    up to max_concurrency coroutines that run handlers
"""
