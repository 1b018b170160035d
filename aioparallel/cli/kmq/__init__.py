"""``aioparallel kmq``: a tracker of a queue, and what is open in one.

::

    commands.py   the commands, their help and options
    tracking.py   a tracker as a process
    status.py     what the marker topic says, as a table
"""
