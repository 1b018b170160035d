"""``aioparallel groups``: the work that consumer groups have left, by their commits and offset maps.

::

    commands.py   the commands with options and help
    work.py       what is left of a partition, by its commit; pure
    strip.py      a map as a row of cells; pure
    reading.py    reads commits, log ends and members
    sampling.py   reads records: the age of the oldest incomplete one, gaps in the log
    printing.py   tables and JSON
    showing.py    list and show
    serving.py    the same over HTTP, for autoscalers
"""
