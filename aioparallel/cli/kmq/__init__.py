"""``aioparallel kmq``: runs a tracker of a queue, and shows the open records of one.

::

    commands.py   the commands with options and help
    tracking.py   runs a tracker
    status.py     shows open records as a table, from the marker topic
"""
