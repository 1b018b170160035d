"""A queue on Kafka with redelivery markers, compatible with softwaremill's KMQ 0.3.2 on the wire.

::

    markers.py        the markers as bytes, and the header that counts redeliveries            pure
    open_markers.py   which records of one partition were begun and not ended, and until when  pure
    marker_times.py   when markers were written, whatever the clocks of their writers say      pure
    topics.py         the queue, its markers, its dead letters
    leases.py         records under way in a consumer, and until when they are its own
    end_markers.py    the markers of their ends
    renewing.py       leases of records that wait for their handlers
    marking.py        the start markers, before the engine has the records
    consumer.py       KmqConsumer
    redelivery.py     reading records again, and sending them again or away
    tracking.py       markers that were read; what is due
    tracker.py        RedeliveryTracker
"""

from aioparallel.queues.kmq.consumer import KmqConsumer
from aioparallel.queues.kmq.markers import redeliveries
from aioparallel.queues.kmq.tracker import RedeliveryTracker, TrackerStats

__all__ = ["KmqConsumer", "RedeliveryTracker", "TrackerStats", "redeliveries"]
