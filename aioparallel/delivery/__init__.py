"""Sends what leaves the process: outputs of handlers, dead letters, copies for retry topics.

::

    producer.py      the interface that a producing Kafka client must implement
    delivery.py      puts everything together for one run, and closes it
    outbox.py        sends what handlers return to the producer
    outputs.py       checks what handlers return
    output_names.py  digests for outputs of one call with the same source      pure
    results.py       results of handlers as a stream, for ``async for``
    dead_letters.py  records that failed for good: to a topic, or to a function
    letters.py       the headers of dead letters, written and read             pure
    shrinking.py     dead letters that are too large for their topic
    first_places.py  where a replayed record was first                         pure
    retry_topics.py  records that come back from retry topics, and when they are due
    topics_read.py   which topics are read: retry topics as well, own topics not
    waiters.py       waits for capacity, in order
"""
