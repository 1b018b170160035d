"""A share partition against a model that looks at one offset at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.log import PartitionLog
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.memory.share_partition import Acquisition, SharePartition
from aioparallel.testing.memory.share_records import RecordState

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
LOCK = 10.0
members = st.sampled_from(["a", "b"])


@dataclass
class Offset:
    """What the model knows of an offset that was delivered."""

    count: int = 0
    member: str | None = None
    until: float = 0.0
    ended: bool = False

    def release(self, limit: int) -> None:
        self.member = None
        self.ended = self.count >= limit


class Locks(RuleBasedStateMachine):
    """Offsets are locked for one member at a time, until they have ended."""

    @initialize(
        limit=st.integers(2, 6),
        width=st.sampled_from([3, 10, 1000]),
        sizes=st.lists(st.integers(1, 5), max_size=10),
    )
    def start(self, limit: int, width: int, sizes: Sequence[int]) -> None:
        self.log = PartitionLog()
        self.options = ShareGroupOptions(delivery_count_limit=limit, max_record_locks=width, lock_duration=LOCK)
        self.partition = SharePartition(self.log, self.options, 0)
        self.offsets: dict[int, Offset] = {}
        self.now = 0.0
        for size in sizes:
            self.append(size)

    @rule(size=st.integers(1, 5))
    def append(self, size: int) -> None:
        first = self.log.end_offset
        for _ in range(size):
            self.log.append(None, b"")
        self.log.join_batch(first)

    @rule(member=members, most=st.integers(1, 8), record_limit=st.booleans(), batch_size=st.integers(1, 8))
    def acquire(self, member: str, most: int, *, record_limit: bool, batch_size: int) -> None:
        """What is acquired was available, in the order of offsets, and counts as a delivery."""
        first = self.first_available()
        taken = self.partition.acquire(Acquisition(member, most, record_limit, batch_size), self.now)
        offsets = [(o, some.delivery_count) for some in taken for o in range(some.first_offset, some.last_offset + 1)]
        assert offsets == sorted(offsets)
        assert not record_limit or len(offsets) <= most
        for offset, count in offsets:
            known = self.offsets.setdefault(offset, Offset())
            assert known.member is None
            assert not known.ended
            assert offset < self.log.end_offset
            known.count += 1
            known.member, known.until = member, self.now + LOCK
            assert known.count == count <= self.options.delivery_count_limit
        if first is not None:
            assert offsets, "something was available"
            assert offsets[0][0] == first, "the first one comes first"
        if self.options.delivery_count_limit > 2 and any(
            count == self.options.delivery_count_limit for _, count in offsets
        ):
            assert len(offsets) == 1, "for its last delivery it comes alone"

    def first_available(self) -> int | None:
        """The lowest offset that may be acquired."""
        waiting = [offset for offset, one in self.offsets.items() if one.member is None and not one.ended]
        beyond = self.partition.end_offset + (self.partition.locked_width > 0)
        if any(
            self.record_state(offset) is RecordState.AVAILABLE for offset in range(self.partition.start_offset, beyond)
        ):
            # Offsets of a batch that were left over by the record limit are in flight, and were never delivered.
            left = [
                offset
                for offset in range(self.partition.start_offset, beyond)
                if offset not in self.offsets and self.record_state(offset) is RecordState.AVAILABLE
            ]
            return min(waiting + left)
        is_full = self.partition.locked_width >= self.options.max_record_locks
        return None if is_full or beyond >= self.log.end_offset else beyond

    def record_state(self, offset: int) -> RecordState | None:
        record = self.partition.record(offset)
        return None if record is None else record.state

    @precondition(lambda self: any(one.member for one in self.offsets.values()))
    @rule(data=st.data(), member=members)
    def acknowledge(self, data: st.DataObject, member: str) -> None:
        """All or nothing. Below the start offset everything is accepted, and changes nothing."""
        held = [offset for offset, one in self.offsets.items() if one.member]
        offsets = sorted(data.draw(st.sets(st.sampled_from(held), min_size=1, max_size=6)))
        kinds = data.draw(st.lists(st.sampled_from(AcknowledgeType), min_size=len(offsets), max_size=len(offsets)))
        self.send(member, list(zip(offsets, kinds, strict=True)))

    @rule(member=members, offset=st.integers(0, 30), kind=st.sampled_from(AcknowledgeType))
    def acknowledge_anything(self, member: str, offset: int, kind: AcknowledgeType) -> None:
        self.send(member, [(offset, kind)])

    def send(self, member: str, given: Sequence[tuple[int, AcknowledgeType]]) -> None:
        start = self.partition.start_offset
        counted = [(self.offsets.get(offset), kind) for offset, kind in given if offset >= start]
        denial = self.partition.acknowledge(
            member, [AcknowledgementBatch(offset, offset, (kind,)) for offset, kind in given], self.now
        )
        renewed = [one for one, kind in counted if kind is RENEW]
        if any(one is None or one.member != member for one, _ in counted):
            assert denial is not None
            assert denial.code in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)
            # Those before the first wrong one are renewed nevertheless.
            for one in renewed:
                if one is not None and one.member == member:
                    offset = next(offset for offset, known in self.offsets.items() if known is one)
                    record = self.partition.record(offset)
                    assert record is not None
                    one.until = record.locked_until
            return
        assert denial is None
        for one, kind in counted:
            assert one is not None
            if kind is RENEW:
                one.until = self.now + LOCK
            elif kind is RELEASE:
                one.release(self.options.delivery_count_limit)
            else:
                one.member, one.ended = None, True

    @rule(seconds=st.sampled_from([0.5, 4.0, LOCK]))
    def wait(self, seconds: float) -> None:
        """Locks end in time, and not before."""
        self.now += seconds
        due = [one for one in self.offsets.values() if one.member and one.until <= self.now]
        assert self.partition.advance(self.now) == bool(due)
        for one in due:
            one.release(self.options.delivery_count_limit)

    @rule(member=members)
    def release(self, member: str) -> None:
        """A session is closed."""
        for one in self.offsets.values():
            if one.member == member:
                one.release(self.options.delivery_count_limit)
        self.partition.release(member)

    @invariant()
    def same_locks(self) -> None:
        held = {offset: one.member for offset, one in self.offsets.items() if one.member}
        assert self.partition.locked() == held

    @invariant()
    def start_is_the_first_that_has_not_ended(self) -> None:
        start = next((offset for offset in range(len(self.offsets) + 1) if not self.has_ended(offset)), 0)
        assert self.partition.start_offset == start

    def has_ended(self, offset: int) -> bool:
        return offset in self.offsets and self.offsets[offset].ended

    @invariant()
    def width_is_bounded(self) -> None:
        """Up to a batch of the log."""
        assert self.partition.locked_width < self.options.max_record_locks + 5

    @invariant()
    def ends_are_the_same(self) -> None:
        for offset, one in self.offsets.items():
            if offset >= self.partition.start_offset:
                record = self.partition.record(offset)
                assert record is not None
                assert (record.has_ended, record.delivery_count) == (one.ended, one.count)


Locks.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestLocks = Locks.TestCase
