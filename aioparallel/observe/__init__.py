"""What a consumer reports about itself, as plain values. ``group/snapshot.py`` fills them in.

::

    stats.py    Stats and its parts
    health.py   Health, and the problems that need attention
"""
