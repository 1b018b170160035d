"""Records, their history, and the errors. Every other package imports this one.

::

    deferral.py        ``record.defer()``: a record that is completed later
    error_codes.py     Kafka's error codes, and which are retriable
    errors.py          the exception tree
    history.py         what happened to a record: attempts, failures, its first place
    missing_extra.py   the error of an import that lacks a library of an extra
    record.py          ``Record`` and its parts; ``Outgoing``, ``Failure``, ``Origin``
    source_headers.py  headers that name the source of a derived record
    timestamps.py      Kafka's timestamps
    user_errors.py     failures of user code; safe texts of any object
    wording.py         words for messages
"""
