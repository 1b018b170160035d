"""Groups whose members come and go under a steady load, and how long their partitions paused for that.

::

    load.py     a steady load of numbered records in all partitions
    group.py    a group, its members all in this process
    pauses.py   what the members did: pauses, losses, order
"""
