"""A record, what happened to it, and the errors: what every other room knows.

::

    deferral.py        ``record.defer()``: a record that is completed later
    error_codes.py     Kafka's error codes, and which of them pass
    errors.py          the exception tree
    history.py         what happened to a record: attempts, failures, where it came from
    record.py          ``Record`` and what it is made of; ``Outgoing``, ``Failure``, ``Origin``
    source_headers.py  headers that name the record another one was made of
    timestamps.py      times as Kafka's logs have them
    user_errors.py     what a user's code raises; texts of any object
    wording.py         words for messages
"""
