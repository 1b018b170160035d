"""A queue on Kafka with redelivery markers, wire-compatible with softwaremill's KMQ 0.3.2.

::

    markers.py        the format of markers, and the header that counts redeliveries          pure
    open_markers.py   the started and unended records of one partition, and their deadlines   pure
    marker_times.py   when markers were written, independent of their writers' clocks         pure
    topics.py         the topics of the queue, its markers and its dead letters
    leases.py         the leased records of a consumer, and how their leases are renewed
    end_markers.py    writes end markers
    leasing.py        the extension of the consumer: writes start markers before records run
    consumer.py       KmqConsumer
    redelivery.py     reads records again, and redelivers or dead-letters them
    tracking.py       the extension of the tracker: reads markers, and finds what is due
    tracker.py        RedeliveryTracker
"""

from aioparallel.queues.kmq.consumer import KmqConsumer
from aioparallel.queues.kmq.markers import redeliveries
from aioparallel.queues.kmq.tracker import RedeliveryTracker, TrackerStats

__all__ = ["KmqConsumer", "RedeliveryTracker", "TrackerStats", "redeliveries"]
