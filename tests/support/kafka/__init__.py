"""Topics and groups on a real broker.

::

    filling.py     fill() a topic; numbered records
    reading.py     read_all() of a topic, committed() offsets of a group, what the checkers say of numbered records
    consuming.py   a ParallelConsumer with a group of its own, run to its end or for the length of a block
    raw_batches.py batches that no client would write, and damage on a broker's disk
    brokers.py     three brokers: made whole again, who coordinates a group
"""
