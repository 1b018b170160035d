"""What a consumer shows of itself. Plain values: ``group/snapshot.py`` fills them in.

::

    stats.py    Stats, and what it holds
    health.py   Health, and the problems that somebody should look at
"""
