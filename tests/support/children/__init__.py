"""A consumer in a process of its own, which a test starts, watches and kills.

::

    job.py        what it is to do, and the child that does it
    consumer.py   the program
    account.py    what it did, from its event log: order, delivery, and what was committed meanwhile
"""
