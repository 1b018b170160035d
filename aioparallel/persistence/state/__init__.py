"""A value for each key, kept in memory and saved in two compacted topics.

::

    keyed_state.py  the extension: restores, saves with commits, writes full snapshots
    view.py         the state of one assignment       table.py        the values by key
    restores.py     all restores of one member        restoring.py    one restore: a full snapshot, then a replay
    topics.py       checks and reads the two topics   writing.py      writes a full snapshot
    increments.py   the format of increments          pieces.py       the format of full snapshots
    unapplied.py    the complete offsets that are not in the state
"""

from aioparallel.config.state import State

__all__ = ["State"]
