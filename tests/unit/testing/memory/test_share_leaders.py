"""Share sessions, ShareFetch and ShareAcknowledge at the leaders, as in Apache Kafka 4.3."""

from __future__ import annotations

import pytest

from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    AcknowledgeType,
    AcquireMode,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, ShareGroupOptions

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
P0 = TopicPartition("t", 0)


class Session:
    """A member's requests to a node about partition 0."""

    def __init__(
        self, broker: InMemoryBroker, member: str = "a", *, topic_id: bytes | None = None, node: int = 1
    ) -> None:
        self.broker = broker
        self.node = node
        self.member = member
        self.topic_id = topic_id or broker.topic_id("t")
        self.epoch = OPEN_SESSION

    def fetch(
        self, most: int = 100, *acks: AcknowledgementBatch, epoch: int | None = None, renewing: bool = False
    ) -> ShareFetchResponse:
        used = self.epoch if epoch is None else epoch
        answer = self.broker.share.fetch(
            self.node,
            ShareFetchRequest(
                group_id="g",
                member_id=self.member,
                share_session_epoch=used,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=0,
                max_records=most,
                batch_size=500,
                share_acquire_mode=AcquireMode.RECORD_LIMIT,
                is_renew_ack=renewing,
                topics=self.named(*acks) if used == OPEN_SESSION or acks else (),
            ),
            0.0,
        )
        self.epoch += answer.error_code == 0
        return answer

    def named(self, *acks: AcknowledgementBatch) -> tuple[AcknowledgeTopic, ...]:
        return (AcknowledgeTopic(self.topic_id, (AcknowledgePartition(0, acks),)),)

    def take(self, most: int = 100, *acks: AcknowledgementBatch) -> dict[int, int]:
        """Delivery counts by offset."""
        answer = self.fetch(most, *acks)
        assert answer.error_code == 0
        parts = [one for topic in answer.responses for one in topic.partitions]
        assert [one.error_code or one.acknowledge_error_code for one in parts] in ([], [0])
        return {
            offset: some.delivery_count
            for one in parts
            for some in one.acquired_records
            for offset in range(some.first_offset, some.last_offset + 1)
        }

    def end(self, *acks: AcknowledgementBatch, epoch: int | None = None, renewing: bool = False) -> tuple[int, int]:
        """The error code of the whole, and of the partition."""
        answer = self.broker.share.acknowledge(
            self.node,
            ShareAcknowledgeRequest(
                group_id="g",
                member_id=self.member,
                share_session_epoch=self.epoch if epoch is None else epoch,
                is_renew_ack=renewing,
                topics=self.named(*acks) if acks else (),
            ),
            0.0,
        )
        self.epoch += answer.error_code == 0
        return answer.error_code, sum(one.error_code for topic in answer.responses for one in topic.partitions)


def batch(first: int, last: int, *kinds: AcknowledgeType) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, kinds)


@pytest.fixture
def session(broker: InMemoryBroker) -> Session:
    """Of a group that begins with the first of ten records."""
    broker.configure_share_group("g", ShareGroupOptions(auto_offset_reset="earliest"))
    broker.append_batch("t", [b""] * 10)
    return Session(broker)


def test_epochs(session: Session) -> None:
    """A request with an error for all of it does not count. Opening a session anew does not release records."""
    assert session.fetch(epoch=5).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert session.end(batch(0, 0, ACCEPT), epoch=1)[0] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert session.end(batch(0, 0, ACCEPT), epoch=OPEN_SESSION)[0] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert session.fetch(1, batch(0, 0, ACCEPT), epoch=OPEN_SESSION).error_code == ErrorCode.INVALID_REQUEST
    assert session.take(1) == {0: 1}
    assert session.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert session.take(1) == {1: 1}
    session.epoch = OPEN_SESSION
    assert session.take(1) == {2: 1}
    assert session.end(batch(0, 2, ACCEPT)) == (0, 0)


def test_closing_a_session_releases(session: Session) -> None:
    """After what is acknowledged with it."""
    assert len(session.take()) == 10
    assert session.end(batch(0, 3, ACCEPT), epoch=CLOSE_SESSION) == (0, 0)
    assert session.end(epoch=CLOSE_SESSION)[0] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert Session(session.broker, "b").take() == dict.fromkeys(range(4, 10), 2)


def test_a_closing_fetch_takes_nothing(session: Session) -> None:
    """It may acknowledge."""
    session.take(2)
    answer = session.fetch(5, batch(0, 1, ACCEPT), epoch=CLOSE_SESSION)
    assert [one.acquired_records for topic in answer.responses for one in topic.partitions] == [()]
    assert session.broker.share.sessions("g") == []


def test_renewing_fetches_take_nothing(session: Session) -> None:
    """Their limits must be 0. Without the flag, RENEW is an unknown type."""
    session.take(2)
    assert session.fetch(5, batch(0, 0, RENEW), renewing=True).error_code == ErrorCode.INVALID_REQUEST
    assert session.take(1, batch(1, 1, ACCEPT)) == {2: 1}
    assert session.end(batch(0, 0, RENEW)) == (0, ErrorCode.INVALID_REQUEST)
    answer = session.fetch(0, batch(0, 0, RENEW), renewing=True)
    assert [one.acknowledge_error_code for topic in answer.responses for one in topic.partitions] == [0]
    session.broker.configure_share_group("g", ShareGroupOptions(is_renew_enabled=False))
    assert session.end(batch(0, 0, RENEW), renewing=True) == (0, ErrorCode.INVALID_RECORD_STATE)


def test_a_fetch_takes_what_it_releases_if_there_is_nothing_else(session: Session) -> None:
    """Otherwise the next one does, unless the broker was quick."""
    assert len(session.take(9)) == 9
    assert session.take(100, batch(0, 0, RELEASE)) == {9: 1}
    assert session.take(100, batch(1, 1, RELEASE)) == {0: 2}
    assert session.take(100) == {1: 2}
    assert session.take(100, batch(1, 1, RELEASE)) == {1: 3}
    session.broker.share.stores_first = True
    session.broker.append("t", b"", partition=0)
    assert session.take(100, batch(1, 1, RELEASE)) == {1: 4}


def test_partitions_that_cannot_be_fetched(session: Session) -> None:
    """Each has its own error, also for acknowledgements."""
    broker = session.broker
    missing = Session(broker, "b", topic_id=b"no topic has it.")
    answer = missing.fetch()
    assert [one.error_code for topic in answer.responses for one in topic.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]
    session.take(1)
    broker.deny_topic("t")
    assert session.end(batch(0, 0, ACCEPT)) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    broker.deny_topic("t", denied=False)
    broker.deny_group("g")
    assert session.end(batch(0, 0, ACCEPT))[0] == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.deny_group("g", denied=False)
    assert session.end(batch(0, 0, ACCEPT)) == (0, 0)
    broker.share_version = 0
    assert session.fetch().error_code == ErrorCode.UNSUPPORTED_VERSION


def test_another_node_leads() -> None:
    """The answer names it. Locks are lost."""
    broker = InMemoryBroker(nodes=2)
    broker.create_topic("t")
    broker.configure_share_group("g", ShareGroupOptions(auto_offset_reset="earliest"))
    broker.append("t", b"")
    session = Session(broker)
    assert session.take() == {0: 1}
    broker.move_leader(P0, 2)
    answer = session.fetch()
    ((one,),) = (topic.partitions for topic in answer.responses)
    assert (one.error_code, one.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert session.end(batch(0, 0, ACCEPT)) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert session.end(epoch=CLOSE_SESSION) == (0, 0)
    state = broker.share.partition("g", P0)
    assert state is not None
    assert state.locked() == {}


def test_a_session_with_a_former_leader() -> None:
    """When it is closed, it releases nothing that was acquired from the new one."""
    broker = InMemoryBroker(nodes=2)
    broker.create_topic("t")
    broker.configure_share_group("g", ShareGroupOptions(auto_offset_reset="earliest"))
    broker.append("t", b"")
    former, session = Session(broker), Session(broker, node=2)
    assert former.take() == {0: 1}
    broker.move_leader(P0, 2)
    assert session.take() == {0: 1}
    assert former.end(epoch=CLOSE_SESSION) == (0, 0)
    assert session.end(batch(0, 0, ACCEPT)) == (0, 0)


def test_too_many_sessions(session: Session) -> None:
    """Of one node. A member whose session is evicted keeps its locks."""
    session.broker.share.max_sessions = 1
    assert len(session.take(1)) == 1
    other = Session(session.broker, "b")
    assert other.fetch().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    session.broker.share.evict(1, "g", "a")
    assert other.take(1) == {1: 1}
    assert session.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    state = session.broker.share.partition("g", P0)
    assert state is not None
    assert state.locked() == {0: "a", 1: "b"}


def test_a_group_begins_at_the_end_by_default(broker: InMemoryBroker) -> None:
    """As it is when a member first fetches."""
    broker.append("t", b"0", partition=0)
    session = Session(broker)
    assert session.take() == {}
    broker.append("t", b"1", partition=0)
    assert session.take() == {1: 1}


def test_a_topic_that_is_deleted(session: Session) -> None:
    """Takes its state with it."""
    session.take(3)
    session.broker.delete_topic("t")
    session.broker.create_topic("t")
    session.broker.append("t", b"", partition=0)
    assert Session(session.broker, "b").take() == {0: 1}
