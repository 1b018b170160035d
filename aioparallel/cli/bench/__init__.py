"""``aioparallel bench``: measures the consumer on the user's brokers.

::

    command.py    options and help
    measuring.py  a topic, a plain loop, the parallel consumer, and the checks
    showing.py    the table, and what limits
"""
