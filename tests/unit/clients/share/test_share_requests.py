"""Requests of a share session: its epochs, and which partitions are named."""

from __future__ import annotations

from aioparallel.clients.aiokafka.share_acks import Ended, Group, PartitionAcks
from aioparallel.clients.aiokafka.share_requests import SessionState
from aioparallel.clients.messages.assignments import TopicPartitions
from aioparallel.clients.messages.share_records import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    AcknowledgeType,
    ShareFetchRequest,
)
from aioparallel.group.share_client import Acknowledged

ID, OTHER = b"the id of topic.", b"another topic's."
ONE, TWO, THREE = (ID, 0), (ID, 1), (OTHER, 0)
Place = tuple[bytes, int]


def ignored(_result: Acknowledged, _until: float) -> None:
    """Somebody's callback."""


def group_of(kinds: dict[int, AcknowledgeType]) -> Group:
    ended: list[Ended] = []
    acks = PartitionAcks(ended)
    acks.acquired(kinds, 30.0, 31.0)
    for offset, kind in kinds.items():
        acks.acknowledge(offset, kind, ignored)
    group = acks.take(0.0)
    assert group is not None
    return group


def fetch(session: SessionState, *places: Place, groups: dict[Place, Group] | None = None) -> ShareFetchRequest:
    return session.fetch(places, groups or {}, most=10, most_bytes=1_000, wait=0.5)


def test_a_session_names_what_changes() -> None:
    """A request without an answer, or refused, changes nothing."""
    session = SessionState("group", "member")
    opening = fetch(session, ONE, TWO)
    assert opening.share_session_epoch == 0
    assert opening.topics == (AcknowledgeTopic(ID, (AcknowledgePartition(0), AcknowledgePartition(1))),)
    assert fetch(session, ONE, TWO) == opening
    session.advanced({ONE, TWO})
    same = fetch(session, ONE, TWO)
    assert (same.share_session_epoch, same.topics, same.forgotten_topics_data) == (1, (), ())
    changed = fetch(session, TWO, THREE)
    assert changed.topics == (AcknowledgeTopic(OTHER, (AcknowledgePartition(0),)),)
    assert changed.forgotten_topics_data == (TopicPartitions(ID, (0,)),)
    session.advanced({TWO, THREE})
    assert session.is_open
    session.lost()
    again = fetch(session, TWO)
    assert (again.share_session_epoch, again.forgotten_topics_data) == (0, ())
    assert again.topics == (AcknowledgeTopic(ID, (AcknowledgePartition(1),)),)


def test_epochs_begin_anew_after_the_largest() -> None:
    session = SessionState("group", "member")
    session._epoch = 2**31 - 1
    session.advanced()
    assert session.acknowledge({}).share_session_epoch == 1
    assert session.close().share_session_epoch == -1


def test_acknowledgements_are_ranges() -> None:
    """In the order of offsets; with one type if all have the same."""
    accept, release, reject, renew = (AcknowledgeType(number) for number in (1, 2, 3, 4))
    session = SessionState("group", "member")
    session.advanced({ONE})
    group = group_of({7: accept, 3: accept, 4: accept, 8: release, 9: reject, 12: release})
    request = fetch(session, ONE, groups={ONE: group})
    batches = (
        AcknowledgementBatch(3, 4, (accept,)),
        AcknowledgementBatch(7, 9, (accept, release, reject)),
        AcknowledgementBatch(12, 12, (release,)),
    )
    assert request.topics == (AcknowledgeTopic(ID, (AcknowledgePartition(0, batches),)),)
    only = session.acknowledge({ONE: group})
    assert (only.topics, only.is_renew_ack) == (request.topics, False)
    assert session.acknowledge({ONE: group_of({1: renew})}).is_renew_ack
