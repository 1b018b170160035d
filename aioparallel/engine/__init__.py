"""Runs records in order, whoever brings them; knows no Kafka, no offset map, no group.

What is called *pure* has plain methods only: no ``await``, no clock, no I/O; time is passed in. Rooms know those below
them in this list, and all know the files at its beginning.

::

    isolation.py  runs handlers in one task, each in its own context
    signals.py    what the engine reports to its owner
    sinks.py      the interface to what sends outputs and dead letters: implemented by delivery/
    sources.py    the interface to a source: its lanes, and its callbacks for completed records
    flow/         the engine without Kafka
    run/          workers; all parts together
    outcomes/     from a handler's end to its record's outcome
    watch/        deadlines, cancellations, a loop that is blocked
    schedule/     which record runs next    pure
"""
