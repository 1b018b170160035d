"""The queues alone: what delivery callbacks may do within them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioparallel.clients.producing.pending import outputs_of
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced
from tests.support.memory.producer_queues import encode

Result = Sequence[Produced] | ProduceFailed


def queues_that_fail_on(bad: bytes) -> PartitionQueues:
    """Queues whose partitioner raises for one key."""

    def choose(key: bytes | None, partitions: list[int], able: list[int]) -> int:
        if key == bad:
            raise LookupError(key)
        return partitions[0]

    return PartitionQueues(encode, lambda output: None, batch_bytes=100, unchecked_bytes=100, partitioner=choose)


def add(
    queues: PartitionQueues, output: Outgoing, deadline: float = 10.0, then: Outgoing | None = None
) -> list[Result]:
    """Returns a list for the result. ``then``: an output to send when ``output`` has a result."""
    results: list[Result] = []

    def ended(result: Result) -> None:
        results.append(result)
        if then is not None:
            add(queues, then)

    for entry in outputs_of([output], ended):
        entry.timestamp, entry.deadline = 0, deadline
        queues.add(entry)
    return results


def test_a_new_topic_within_an_update() -> None:
    """An update of the metadata fails an output, and its callback sends to a new topic, as with a dead letter. The
    other topics are updated, and the new one waits for its metadata."""
    queues = queues_that_fail_on(b"bad")
    failed = add(queues, Outgoing("t", b"1", b"bad"), then=Outgoing("letters", b"1"))
    add(queues, Outgoing("u", b"2"))
    queues.update(lambda topic: {0: True}, 0.0)
    assert isinstance(failed[0], ProduceFailed)
    assert [(queue.topic, queue.partition) for queue in queues.queues if not queue.is_empty] == [
        ("u", 0),
        ("letters", -1),
    ]
    assert queues.needs_metadata


@pytest.mark.parametrize("then", [Outgoing("t", b"2", partition=0), Outgoing("letters", b"2")])
def test_what_is_sent_while_others_expire_counts_for_the_next_deadline(then: Outgoing) -> None:
    """Even in a partition that was checked before, or in a new topic."""
    queues = PartitionQueues(encode, lambda output: None, batch_bytes=100, unchecked_bytes=100)
    add(queues, Outgoing("t", b"0", partition=0), 4.0)
    late = add(queues, Outgoing("t", b"1", partition=1), 5.0, then)
    queues.update(lambda topic: {0: True, 1: True}, 0.0)
    for now, deadline in ((4.0, 5.0), (5.0, 10.0)):
        queues.expire(now, lambda queue: "late")
        assert queues.next_deadline == deadline
    assert isinstance(late[0], ProduceFailed)
