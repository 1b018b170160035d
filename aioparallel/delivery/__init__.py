"""What leaves: produced records, dead letters, copies for retry topics.

::

    producer.py      the interface that a producing Kafka client must have; this room owns it
    delivery.py      what one run needs of all this, put together and closed
    outbox.py        what handlers return, on its way to the producer
    results.py       the same as a stream, for ``async for``
    dead_letters.py  the end of retries: to a topic, to a function
    letters.py       a dead letter's headers, written and read
    retry_topics.py  records that come back
    topics_read.py   what is read: retry topics as well, own topics not
    due_times.py     when they are due, whatever clocks say    pure
    waiters.py       those who wait for room
"""
