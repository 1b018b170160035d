"""The workers, and all parts of the engine together.

::

    processor.py  puts all of these together
    workers.py    up to max_concurrency coroutines that run handlers
"""
