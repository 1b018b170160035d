"""What a consumer shows of itself: plain values, which ``group/snapshot.py`` fills in, and log lines that name
records.

::

    health.py          The health of a running consumer
    record_logging.py  which record a log line is about
    stats.py           Statistics of a consumer
"""
