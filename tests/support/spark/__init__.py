"""For the tests of Spark.

::

    topics.py                records for them
    settings.py              what all sessions have in common
    class_archive.py         a file of classes, with which they start sooner
    warm_daemon.py           what starts Python workers for them
    handlers.py, columns.py  what Spark's processes find by name
    tried.py                 handlers that are tried without Spark
    schemas.py               any types, for property tests
    progress_events.py       what Spark said of a stream
    connect_program.py, operator_on_connect.py  programs of their own, for Spark Connect
"""
