"""Requests in flight, and which nodes owe an answer. Synchronous; the time is passed in."""

from __future__ import annotations

import pytest

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.open_requests import MOST_IN_FLIGHT, SILENCE, Requests
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.pending import Outstanding, outputs_of
from aioparallel.records.record import Outgoing


def nowhere(node: int) -> str:
    return ""


def batch_for(partition: int) -> RecordBatch:
    entries = outputs_of([Outgoing("t", b"v")], lambda result: None)
    queue = PartitionQueue("t", partition, 1000, Outstanding())
    return RecordBatch(queue, entries, b"v", Identity(1, 0), 0)


def test_what_is_on_its_way_is_counted_by_node() -> None:
    """Until it is answered or given up."""
    requests = Requests()
    first, second = requests.begin(1, "", [], 0.0), requests.begin(1, "", [], 0.0)
    requests.begin(2, "", [], 0.0)
    assert [requests.count(node) for node in (1, 2, 3)] == [2, 1, 0]
    more = [requests.begin(1, "", [], 0.0) for _ in range(MOST_IN_FLIGHT - 2)]
    assert requests.busy == [1]
    for request in more:
        requests.end(request, 0.0, is_answered=False)
    requests.end(first, 1.0, is_answered=True)
    requests.end(second, 1.0, is_answered=False)
    assert [requests.count(node) for node in (1, 2, 3)] == [0, 1, 0]
    assert not requests.busy


def test_three_seconds_without_an_answer_are_silence() -> None:
    """From the first request on. Each answer restarts the time, even one to a later request."""
    requests = Requests()
    old, young = requests.begin(1, "", [], 10.0), requests.begin(1, "", [], 11.0)
    assert requests.next_look(11.0) == 10.0 + SILENCE
    assert requests.silent(12.9) == {}
    assert requests.silent(13.0) == {1: 10.0}
    requests.end(young, 13.5, is_answered=True)
    assert requests.silent(16.0) == {}
    assert requests.next_look(16.0) == 13.5 + SILENCE
    assert requests.silent(16.5) == {1: 13.5}
    requests.end(old, 17.0, is_answered=True)
    assert (requests.silent(100.0), requests.next_look(100.0)) == ({}, None)


def test_repeated_requests_do_not_restart_the_time() -> None:
    """Short request timeouts do not hide a silent broker; pauses between attempts count."""
    requests = Requests()
    for number in range(10):
        request = requests.begin(1, "", [], number * 2.0)
        requests.end(request, number * 2.0 + 1.0, is_answered=False)
    assert requests.silent(19.5) == {1: 0.0}
    request = requests.begin(1, "", [], 20.0)
    assert requests.silent(20.0) == {1: 0.0}
    requests.end(request, 20.5, is_answered=True)
    assert requests.silent(100.0) == {}


def test_a_node_without_requests_owes_nothing() -> None:
    """Five seconds after the last request was given up: the broker may be gone, and nothing waits for it."""
    requests = Requests()
    requests.end(requests.begin(1, "", [], 0.0), 4.0, is_answered=False)
    assert requests.silent(8.9) == {1: 0.0}
    assert requests.silent(9.1) == {}
    requests.begin(1, "", [], 10.0)
    assert requests.silent(12.9) == {}
    assert requests.silent(13.0) == {1: 10.0}


def test_a_look_is_never_in_the_past() -> None:
    """A late check runs at once. The earliest node counts, and nodes that owe nothing do not."""
    requests = Requests()
    answered = requests.begin(3, "", [], 0.0)
    requests.begin(1, "", [], 2.0)
    requests.begin(2, "", [], 1.0)
    requests.end(answered, 2.0, is_answered=True)
    assert requests.next_look(2.0) == 1.0 + SILENCE
    assert requests.next_look(20.0) == 20.0


@pytest.mark.parametrize(
    ("leaders", "is_deserted"),
    [
        ({0: 1, 1: 1}, False),
        ({0: 2, 1: 1}, True),
        ({0: 2, 1: 2}, True),
        ({0: None, 1: 1}, False),
        ({0: -1, 1: -1}, False),
        ({0: None, 1: 2}, True),
    ],
)
def test_a_silent_node_is_deserted_when_another_one_leads(leaders: dict[int, int | None], is_deserted: bool) -> None:
    """One of its partitions with another leader is enough. A partition without a leader is not, because no other node
    could take its outputs."""
    requests = Requests()
    requests.begin(1, "", [batch_for(0)], 0.0)
    requests.begin(1, "", [batch_for(1)], 0.5)

    def leader_of(queue: PartitionQueue) -> int | None:
        return leaders[queue.partition]

    assert requests.deserted(2.9, leader_of, nowhere) == []
    assert requests.deserted(3.0, leader_of, nowhere) == ([1] if is_deserted else [])


def test_only_what_is_on_its_way_counts() -> None:
    """No connection is closed if nothing is in flight: the request was given up, and another node leads."""
    requests = Requests()
    requests.end(requests.begin(1, "", [batch_for(0)], 0.0), 3.5, is_answered=False)
    assert requests.silent(4.0) == {1: 0.0}
    assert requests.deserted(4.0, lambda queue: 2, nowhere) == []


def test_a_silent_node_at_another_address_is_deserted() -> None:
    """A broker was replaced under the same id, so requests to the old address will not be answered."""
    requests = Requests()
    requests.begin(1, "old:9092", [batch_for(0)], 0.0)
    assert requests.deserted(4.0, lambda queue: 1, lambda node: "old:9092") == []
    assert requests.deserted(2.0, lambda queue: 1, lambda node: "new:9092") == []
    assert requests.deserted(4.0, lambda queue: 1, lambda node: "new:9092") == [1]
