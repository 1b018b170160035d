"""The outbox by itself: what its callers do from within the end of an output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioparallel.clients.outbox.deliveries import entries_of
from aioparallel.clients.outbox.outbox import Outbox
from aioparallel.errors import ProduceFailed
from aioparallel.records import Outgoing, Produced

from .simulated import encode

Result = Sequence[Produced] | ProduceFailed


def outbox_that_fails_on(bad: bytes) -> Outbox:
    """Its partitioner raises for one key."""

    def choose(key: bytes | None, partitions: list[int], able: list[int]) -> int:
        if key == bad:
            raise LookupError(key)
        return partitions[0]

    return Outbox(encode, lambda output: None, batch_bytes=100, unchecked_bytes=100, partitioner=choose)


def add(outbox: Outbox, output: Outgoing, deadline: float = 10.0, then: Outgoing | None = None) -> list[Result]:
    """Returns where its result will be. ``then``: sent as soon as ``output`` has ended."""
    results: list[Result] = []

    def ended(result: Result) -> None:
        results.append(result)
        if then is not None:
            add(outbox, then)

    for entry in entries_of([output], ended):
        entry.timestamp, entry.deadline = 0, deadline
        outbox.add(entry)
    return results


def test_a_new_topic_within_an_update() -> None:
    """The metadata brings an end to an output, and its callback sends to a topic that nobody has named before, as with
    a dead letter: the other topics are updated all the same, and the new one waits for its metadata."""
    outbox = outbox_that_fails_on(b"bad")
    failed = add(outbox, Outgoing("t", b"1", b"bad"), then=Outgoing("letters", b"1"))
    add(outbox, Outgoing("u", b"2"))
    outbox.update(lambda topic: {0: True}, 0.0)
    assert isinstance(failed[0], ProduceFailed)
    assert [(queue.topic, queue.partition) for queue in outbox.queues if not queue.is_empty] == [
        ("u", 0),
        ("letters", -1),
    ]
    assert outbox.needs_metadata


@pytest.mark.parametrize("then", [Outgoing("t", b"2", partition=0), Outgoing("letters", b"2")])
def test_what_is_sent_while_others_expire_counts_for_the_next_deadline(then: Outgoing) -> None:
    """Also in a partition that was looked at before, and in a new topic."""
    outbox = Outbox(encode, lambda output: None, batch_bytes=100, unchecked_bytes=100)
    add(outbox, Outgoing("t", b"0", partition=0), 4.0)
    late = add(outbox, Outgoing("t", b"1", partition=1), 5.0, then)
    outbox.update(lambda topic: {0: True, 1: True}, 0.0)
    assert outbox.expire(4.0, lambda queue: "late").next_deadline == 5.0
    assert outbox.expire(5.0, lambda queue: "late").next_deadline == 10.0
    assert isinstance(late[0], ProduceFailed)
