"""What leaves: produced records, dead letters, copies for retry topics.

::

    producer.py      the interface that a producing Kafka client must have; this room owns it
    delivery.py      what one run needs of all this, put together and closed
    outbox.py        what handlers return, on its way to the producer
    results.py       the same as a stream, for ``async for``
    dead_letters.py  the end of patience: to a topic, to a function
    letters.py       a dead letter's headers, written and read
    retry_topics.py  records that come back
    waiters.py       those who wait for room
"""
