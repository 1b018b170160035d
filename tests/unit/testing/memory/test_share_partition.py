"""What members acquire and acknowledge in one partition of a share group, as in Apache Kafka 4.3."""

from __future__ import annotations

from collections.abc import Sequence

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.log import PartitionLog, Transaction
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.memory.share_partition import Acquisition, SharePartition

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
LOCK = 10.0


def written(log: PartitionLog, *sizes: int, transaction: Transaction | None = None) -> None:
    """Batches of these sizes."""
    for size in sizes:
        first = log.end_offset
        for _ in range(size):
            log.append(None, b"", transaction=transaction)
        log.join_batch(first)


class Tried:
    """A partition with members "a" and "b"."""

    def __init__(self, *sizes: int, **options: object) -> None:
        self.log = PartitionLog()
        written(self.log, *sizes)
        settings = {"lock_duration": LOCK} | options
        self.partition = SharePartition(self.log, ShareGroupOptions(**settings), 0)  # type: ignore[arg-type]

    def take(self, most: int, member: str = "a", *, limit: bool = True, now: float = 0.0) -> list[tuple[int, int, int]]:
        """First and last offsets, and delivery counts."""
        taken = self.partition.acquire(Acquisition(member, most, limit), now)
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in taken]

    def end(self, first: int, last: int, *kinds: AcknowledgeType, member: str = "a", now: float = 0.0) -> int:
        """The error code; 0: none."""
        return self.send([AcknowledgementBatch(first, last, kinds)], member, now)

    def send(self, batches: Sequence[AcknowledgementBatch], member: str = "a", now: float = 0.0) -> int:
        denial = self.partition.acknowledge(member, batches, now)
        return 0 if denial is None else denial.code


def test_whole_batches_without_the_record_limit() -> None:
    """More than asked for. With the limit it is exact, and the rest of the batch is available."""
    tried = Tried(1, 10, 5)
    assert tried.take(3, limit=False) == [(0, 10, 1)]
    assert tried.take(2) == [(11, 12, 1)]
    assert tried.partition.end_offset == 15
    assert tried.take(100, "b") == [(13, 15, 1)]


def test_one_wrong_offset_refuses_all() -> None:
    """Nothing has changed after that."""
    tried = Tried(5)
    tried.take(5)
    assert tried.end(1, 1, RELEASE) == 0
    assert tried.end(0, 1, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert tried.end(0, 0, ACCEPT, member="b") == ErrorCode.INVALID_RECORD_STATE
    assert tried.end(3, 5, ACCEPT) == ErrorCode.INVALID_REQUEST, "past what was acquired"
    assert tried.end(0, 0) == ErrorCode.INVALID_REQUEST, "no type"
    assert tried.end(0, 3, ACCEPT, ACCEPT) == ErrorCode.INVALID_REQUEST, "too few types"
    one, three = AcknowledgementBatch(0, 0, (ACCEPT,)), AcknowledgementBatch(3, 3, (ACCEPT,))
    assert tried.send([three, one]) == ErrorCode.INVALID_REQUEST, "not in order"
    assert tried.send([three, three]) == ErrorCode.INVALID_RECORD_STATE, "twice"
    assert tried.partition.locked() == dict.fromkeys((0, 2, 3, 4), "a")
    assert tried.send([one, three]) == 0


def test_below_the_start_everything_is_accepted() -> None:
    """Also of a record that another member has accepted."""
    tried = Tried(3)
    tried.take(1)
    tried.partition.advance(LOCK)
    assert tried.take(1, "b", now=LOCK) == [(0, 0, 2)]
    assert tried.end(0, 0, ACCEPT, now=LOCK) == ErrorCode.INVALID_RECORD_STATE
    assert tried.end(0, 0, ACCEPT, member="b", now=LOCK) == 0
    assert tried.partition.start_offset == 1
    for kind in (ACCEPT, REJECT, RELEASE, RENEW):
        assert tried.end(0, 0, kind, now=LOCK) == 0


def test_the_last_delivery_comes_alone() -> None:
    """And before it, fewer records come together each time, as one of them may break its members."""
    tried = Tried(8)
    for count in (1, 2, 3):
        assert tried.take(100) == [(0, 7, count)]
        assert tried.end(0, 7, RELEASE) == 0
    assert tried.take(100) == [(0, 3, 4)]
    assert tried.end(0, 3, RELEASE) == 0
    assert tried.take(100) == [(0, 0, 5)]
    assert tried.end(0, 0, RELEASE) == 0
    assert tried.partition.start_offset == 1, "it has ended"
    assert tried.take(100) == [(1, 1, 5)]


def test_locks_end() -> None:
    """At their time, and not before. A renewed one ends later."""
    tried = Tried(3)
    tried.take(3)
    assert tried.end(1, 1, RENEW, now=4.0) == 0
    assert not tried.partition.advance(LOCK - 0.01)
    assert tried.partition.next_deadline() == LOCK
    assert tried.partition.advance(LOCK)
    assert tried.partition.locked() == {1: "a"}
    assert tried.partition.advance(LOCK + 4.0)
    assert tried.take(3, now=LOCK + 4.0) == [(0, 2, 2)]


def test_a_closed_session_releases_what_its_member_has() -> None:
    """And each delivery counts."""
    tried = Tried(4)
    tried.take(2)
    tried.take(2, "b")
    assert tried.partition.release("a")
    assert not tried.partition.release("a")
    assert tried.take(9, "b") == [(0, 1, 2)]


def test_the_window_is_bounded() -> None:
    """It goes from the first offset that has not ended to the last that was acquired. What is available within it may
    be acquired when it is full."""
    tried = Tried(*[1] * 10, max_record_locks=4)
    assert tried.take(9) == [(0, 3, 1)]
    assert (tried.take(9), tried.partition.has_records()) == ([], False)
    assert tried.end(2, 2, RELEASE) == 0
    assert tried.take(9) == [(2, 2, 2)]
    assert tried.end(1, 3, ACCEPT) == 0
    assert tried.take(9) == [], "0 is in front of all"
    assert tried.end(0, 0, ACCEPT) == 0
    assert tried.take(9) == [(4, 7, 1)]


def test_what_a_fetch_releases_is_not_available_to_it() -> None:
    """The new state is not stored yet."""
    tried = Tried(4)
    tried.take(2)
    assert tried.partition.begin_acknowledge("a", [AcknowledgementBatch(0, 0, (RELEASE,))], 0.0) is None
    assert tried.take(1) == [(2, 2, 1)]
    assert tried.partition.complete()
    assert tried.take(1) == [(0, 0, 2)]


def test_transactions() -> None:
    """A group that reads committed records waits for their end; aborted ones are not acquired, and are over. The end is
    a gap."""
    tried = Tried(2, isolation_level="read_committed")
    transaction = Transaction()
    written(tried.log, 3, transaction=transaction)
    assert tried.take(9) == [(0, 1, 1)]
    assert tried.take(9) == []
    transaction.is_committed = False
    tried.log.end_transaction(transaction)
    assert tried.take(9) == [(5, 5, 1)]
    assert tried.end(5, 5, GAP) == 0
    assert tried.end(0, 1, ACCEPT) == 0
    assert tried.partition.start_offset == 6


def test_records_that_were_deleted() -> None:
    """Available ones are over. Those that are locked end with their locks."""
    tried = Tried(6)
    tried.take(4)
    assert tried.end(0, 1, RELEASE) == 0
    tried.log.delete_before(5)
    assert tried.take(9) == [], "a fetch finds out"
    assert tried.partition.start_offset == 5
    assert tried.end(2, 3, ACCEPT) == 0, "below the start"
    assert tried.take(9) == [(5, 5, 1)]
    tried.partition.advance(LOCK)
    assert tried.partition.locked() == {}
    assert tried.take(9, now=LOCK) == [(5, 5, 2)]


def test_records_that_were_compacted() -> None:
    """Offsets within a batch are acquired nevertheless, and single batches between others too; they are gaps."""
    tried = Tried(4, 1, 2)
    tried.log.compact([1, 4])
    assert tried.take(9, limit=False) == [(0, 6, 1)]
    assert tried.end(0, 6, RELEASE) == 0
    tried.log.compact([0, 2, 3])
    assert tried.take(9) == [(5, 6, 2)], "the first batches are not there any more"
    assert tried.end(5, 6, ACCEPT) == 0
    assert tried.partition.start_offset == 7


def test_another_leader_knows_no_locks() -> None:
    """Nor the deliveries that did not end."""
    tried = Tried(4)
    tried.take(4)
    assert tried.end(0, 1, RELEASE) == 0
    assert tried.end(2, 2, ACCEPT) == 0
    tried.take(1)
    tried.partition.reload()
    assert tried.partition.locked() == {}
    assert tried.take(9) == [(0, 1, 2), (3, 3, 1)]
    assert tried.end(2, 2, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
