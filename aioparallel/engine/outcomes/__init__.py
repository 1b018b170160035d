"""From a handler's end to its record's outcome: retries, gates, failures and what is logged of them.

::

    batch_endings.py  the same for the records of a batch
    endings.py        from a handler's end to its record's outcome
    failure_log.py    log lines about failures, rate-limited
    failures.py       what happens to a record whose attempt failed                  pure
    gates.py          limits concurrency per place, such as an HTTP host; records wait there
    retries.py        when parked records become due, and their timer
    shortages.py      logs and reports exhausted resources, such as file descriptors
    throttling.py     how much of the last minute a place has refused
"""
