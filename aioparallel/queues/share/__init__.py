"""Share groups (KIP-932): each record is locked for one member for a time, and acknowledged by itself.

Modules marked *pure* have plain methods only: no ``await``, no clock, no I/O; time is passed in.

::

    consumer.py       ShareConsumer: its options
    sharing.py        the extension that makes a consumer a member of a share group
    run.py            puts all of the following together, from run to closed
    acquiring.py      acquires records when the workers need more, and gives them to the engine
    throughput.py     how many records to acquire next                                             pure
    sources.py        the sources of acquired records; the ends of records become acknowledgements
    acknowledging.py  sends acknowledgements and renewals, and handles their answers
    locks.py          what must be done before locks end                                           pure
    keeping.py        does that in time: renews, releases, cancels handlers
    redelivery.py     what becomes of a failed record
    ends.py           when a run with until="end" is over
    snapshot.py       statistics

The interface to the Kafka client is :mod:`aioparallel.group.share_client`.
"""

from aioparallel.queues.share.consumer import ShareConsumer

__all__ = ["ShareConsumer"]
