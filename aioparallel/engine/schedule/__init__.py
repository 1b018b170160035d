"""Which record runs next: lanes, their order, whose turn it is, which go together.

::

    batch_assembler.py  which records go together into one call                  pure
    counters.py         how many records are in each state, and their moves          pure
    fairness.py         sources with ready records take turns                          pure
    lanes.py            a lane as a linked list of records; lanes that outlive their source   pure
    parking.py          the bound of parked records, shared among the sources          pure
    scheduler.py        which record runs next, and what an outcome changes            pure
    turn.py             starts several records of one source in a row: the hot path    pure
"""
