"""State of each key, in memory, that survives: with the topic as its home.

::

    view.py         of one session: what handlers see, what is complete      table.py    the values by key
    keyed_state.py  the extension: restored, saved with commits, snapshots now and then
    restores.py     partitions on their way, and the increments that they begin with
    restoring.py    the state at a committed position: a full snapshot, and the records behind it
    writing.py      full snapshots, written
    topics.py       the two topics: what they must be, and how increments are found
    increments.py   what is written with each commit      pieces.py     what a full snapshot is made of
"""

from aioparallel.config.state import State

__all__ = ["State"]
