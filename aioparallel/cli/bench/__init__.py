"""What the consumer makes of somebody's brokers, records and handlers.

::

    command.py    options and help
    measuring.py  a topic, a plain loop, the parallel consumer, and the checks
    showing.py    the table, and what limits
"""
