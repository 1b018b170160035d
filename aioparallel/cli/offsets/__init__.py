"""``aioparallel offsets``: changes the offsets of a group that is stopped, and keeps its offset maps.

::

    commands.py    the commands with options and help
    places.py      offsets as they are typed: topic:partition:offset
    planning.py    what a change does; pure
    stored.py      reads and writes positions, in Kafka or in a database
    changing.py    the fence: plan, compare, commit, read back
    exporting.py   positions as JSON
"""
