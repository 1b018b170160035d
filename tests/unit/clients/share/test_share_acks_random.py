"""Acknowledgements of one partition, against a broker that knows which offsets are locked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.clients.aiokafka.share_acks import Ended, Group, PartitionAcks
from aioparallel.clients.messages.share_records import AcknowledgeType
from aioparallel.group.share_client import Acknowledged

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
OFFSETS = range(8)
LOCK = 30.0
TRIP = 0.5
"""Seconds from a request to the broker, and back."""


@dataclass
class Given:
    """One acknowledgement, and what has become of it."""

    offset: int
    delivery: int
    kind: AcknowledgeType
    is_second: bool
    """After another one that was not RENEW."""
    results: list[Acknowledged] = field(default_factory=list)
    accepted: int = 0
    """How often the broker has accepted it."""
    is_true: bool = True
    """The record was locked for this member then."""
    is_late: bool = False
    """The answer came when the lock may have ended."""

    def report(self, result: Acknowledged, locked_until: float) -> None:
        self.results.append(result)
        assert bool(locked_until) is (self.kind is RENEW and result is Acknowledged.DONE)


class AcksMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.ended: list[Ended] = []
        self.acks = PartitionAcks(self.ended)
        self.locks: dict[int, float] = {}  # at the broker: when each ends
        self.deliveries: dict[int, int] = {}  # how often each offset was acquired
        self.given: list[Given] = []
        self.sent: list[Group] = []
        self.may_renew = True
        self.acquired_at: dict[int, float] = {}
        self.renewed: set[int] = set()
        self.lost: set[tuple[int, int]] = set()  # deliveries that the client knows to be not held
        self.final: set[tuple[int, int]] = set()  # deliveries that were acknowledged by another type than RENEW
        self.start = 0  # the broker accepts everything below it

    def is_locked(self, offset: int) -> bool:
        return self.locks.get(offset, 0.0) > self.now

    def take(self, *, plain: bool = False) -> Group | None:
        group = self.acks.take(self.now, plain=plain)
        self.report()  # renewals that are late
        return group

    def given_of(self, group: Group) -> list[Given]:
        found = [ack.ended.__self__ for ack in group.acks if ack.ended is not None]  # type: ignore[attr-defined]
        assert all(isinstance(one, Given) for one in found)
        return found

    def report(self) -> None:
        ended, self.ended[:] = self.ended[:], ()
        for report, result, until in ended:
            report(result, until)
            one = report.__self__  # type: ignore[attr-defined]
            if result is Acknowledged.NOT_HELD:
                self.lost.add((one.offset, one.delivery))

    # -- what happens

    @initialize()
    def begin(self) -> None:
        self.acquire()

    @rule()
    def acquire(self) -> None:
        """What is not locked. All offsets stand for later ones if another member has ended them."""
        self.start = 0
        free = [offset for offset in OFFSETS if not self.is_locked(offset)]
        for offset in free:
            self.locks[offset] = self.now + LOCK
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
            self.acquired_at[offset] = self.now
            self.renewed.discard(offset)
        self.acks.acquired(free, self.now - TRIP + LOCK, self.now + TRIP + LOCK)

    @rule()
    def acquire_a_gap(self) -> None:
        first, size = OFFSETS.stop, 2
        offsets = range(first, first + size)
        if any(self.is_locked(offset) for offset in offsets):
            return
        self.locks |= dict.fromkeys(offsets, self.now + LOCK)
        self.acks.gap(first, first + size - 1, self.now - TRIP + LOCK, self.now + TRIP + LOCK)

    @rule(offsets=st.sets(st.sampled_from(OFFSETS), min_size=1), kind=st.sampled_from([ACCEPT, RELEASE, REJECT, RENEW]))
    def acknowledge(self, offsets: set[int], kind: AcknowledgeType) -> None:
        for offset in sorted(offsets):
            self.acknowledge_one((offset, self.deliveries[offset]), kind)

    def acknowledge_one(self, delivery: tuple[int, int], kind: AcknowledgeType) -> None:
        one = Given(*delivery, kind, is_second=delivery in self.final)
        if kind is not RENEW:
            self.final.add(delivery)
        self.given.append(one)
        self.acks.acknowledge(one.offset, kind, one.report)
        if self.ended and self.ended[-1].report == one.report:  # refused without being sent
            assert one.is_second or delivery in self.lost

    @rule(offsets=st.sets(st.sampled_from(OFFSETS), min_size=1))
    def give_back(self, offsets: set[int]) -> None:
        """As if the member had not seen them."""
        for offset in offsets:
            lock = self.acks._locks.get(offset)
            if lock is not None:
                assert self.acks.is_held(offset, lock.until, self.now) is not lock.is_late(self.now)
                self.acks.give_back([offset], lock.until - 1e-3)  # of another acquisition
                self.acks.give_back([offset], lock.until)
                self.final.add((offset, self.deliveries[offset]))

    @rule(seconds=st.sampled_from([0.1, 14.0, 29.8, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(offsets=st.sets(st.sampled_from(OFFSETS), min_size=1, max_size=2))
    def some_locks_are_lost(self, offsets: set[int]) -> None:
        """The client does not know."""
        for offset in offsets:
            self.locks.pop(offset, None)

    @rule()
    def a_request_meets_another(self) -> None:
        """What is acknowledged while a request is under way that is not processed."""
        if (group := self.take()) is None:
            return
        for ack in group.acks:
            if (delivery := (ack.offset, self.deliveries.get(ack.offset, 0))) not in self.final and ack.kind == RENEW:
                self.acknowledge_one(delivery, RENEW)
        self.acks.again(group, self.now)
        self.report()

    @rule()
    def another_member_ends_them(self) -> None:
        """After all locks have ended."""
        self.now += LOCK + 1.0
        self.start = OFFSETS.stop + 2

    @rule()
    def the_session_is_lost(self) -> None:
        self.locks.clear()
        self.acks.released()

    @rule()
    def renewing_is_forbidden(self) -> None:
        self.may_renew = False

    # -- requests

    @precondition(lambda self: len(self.sent) < 2)
    @rule(plain=st.booleans())
    def send(self, plain: bool) -> None:
        was_due = self.acks.is_due
        group = self.take(plain=plain)
        assert group is None or was_due
        if group is not None:
            self.sent.append(group)
            assert not (plain and group.renews)
            self.check_sent(group)

    def check_sent(self, group: Group) -> None:
        offsets = [ack.offset for ack in group.acks]
        assert offsets == sorted(set(offsets))
        assert {ack.kind == RENEW for ack in group.acks} == {group.renews}
        for one in self.given_of(group):
            assert not one.results, "it has ended already"
            assert not one.is_second
            assert not (one.kind is RENEW and (one.offset, one.delivery) in self.final), "it came too late"
            assert one.delivery == self.deliveries[one.offset], "it belongs to an earlier delivery"
        batches = group.batches()
        listed = [
            (offset, (batch.acknowledge_types * (batch.last_offset - batch.first_offset + 1))[at])
            for batch in batches
            for at, offset in enumerate(range(batch.first_offset, batch.last_offset + 1))
        ]
        assert listed == [(ack.offset, ack.kind) for ack in group.acks]
        assert all(len(batch.acknowledge_types) in {1, batch.last_offset - batch.first_offset + 1} for batch in batches)
        assert all(one.last_offset + 1 < two.first_offset for one, two in itertools.pairwise(batches))

    def process(self, group: Group) -> bool:
        """What the broker does with a request."""
        if group.renews and not self.may_renew:
            return False
        if not all(self.is_locked(ack.offset) or ack.offset < self.start for ack in group.acks):
            return False
        for one in self.given_of(group):
            one.accepted += 1
            one.is_true = self.is_locked(one.offset)
        for ack in group.acks:
            if ack.kind == RENEW and self.is_locked(ack.offset):
                self.locks[ack.offset] = self.now + LOCK
                self.renewed.add(ack.offset)
            else:
                self.locks.pop(ack.offset, None)
        return True

    def answer(self, group: Group) -> None:
        locks = [ack.lock for ack in group.acks if ack.ended is not None]
        for one, lock in zip(self.given_of(group), locks, strict=True):
            one.is_late = lock.is_late(self.now)
        if self.process(group):
            self.acks.done(group, self.now, self.now - TRIP + LOCK, self.now + TRIP + LOCK)
        elif group.renews and not self.may_renew:
            self.acks.renewing_refused(group)
        else:
            locked = {ack.offset for ack in group.acks if self.is_locked(ack.offset)}
            unreported = len(self.ended)
            self.acks.refused(group, self.now)
            for end in self.ended[unreported:]:
                one = end.report.__self__  # type: ignore[attr-defined]
                is_same = one.delivery == self.deliveries.get(one.offset, 0)
                assert one.offset not in locked or not is_same, "a neighbour is spoiled"
        self.report()

    @precondition(lambda self: self.sent)
    @rule(last=st.booleans())
    def is_answered(self, last: bool) -> None:
        self.answer(self.sent.pop(-1 if last else 0))

    @precondition(lambda self: self.sent)
    @rule(is_processed=st.booleans())
    def unanswered(self, is_processed: bool) -> None:
        group = self.sent.pop()
        if is_processed:
            self.process(group)
        self.acks.unknown(group)
        self.report()

    @rule()
    def everything_is_sent(self) -> None:
        while self.sent:
            self.answer(self.sent.pop(0))
        while (group := self.take()) is not None:
            self.check_sent(group)
            self.answer(group)

    @precondition(lambda self: self.sent)
    @rule()
    def not_processed(self) -> None:
        group = self.sent.pop()
        late = [one for one in self.given_of(group) if self.acquired_at[one.offset] < self.now - LOCK - 2 * TRIP]
        self.acks.again(group, self.now)
        self.report()
        for one in late:
            assert one.results or one.offset in self.renewed, "it would be sent again and again"

    @rule()
    def one_group_is_sent(self) -> None:
        if (group := self.take()) is not None:
            self.check_sent(group)
            self.answer(group)

    @rule()
    def nothing_can_be_sent(self) -> None:
        self.acks.expire(self.now)
        self.report()

    # -- what holds

    @invariant()
    def each_is_answered_at_most_once(self) -> None:
        for one in self.given:
            assert len(one.results) <= 1
            assert not one.is_second or one.results in ([], [Acknowledged.NOT_HELD])
            assert one.accepted <= 1, "sent again after the broker had it"
            if one.results == [Acknowledged.DONE]:
                assert one.accepted == 1
                assert one.is_true or one.kind is not RENEW, "it was not renewed"
            if one.accepted and one.results and not (one.kind is RENEW and one.is_late):
                assert one.results[0] in {Acknowledged.DONE, Acknowledged.UNKNOWN}

    def teardown(self) -> None:
        """In the end each has its answer."""
        for _ in range(10_000):
            while self.sent:
                self.answer(self.sent.pop(0))
            group = self.take()
            if group is None:
                break
            self.sent.append(group)
        self.report()
        assert not self.acks.is_due
        for one in self.given:
            assert len(one.results) == 1, one
        self.acks.clear(Acknowledged.NOT_SENT)
        assert not self.acks.holds
        assert not self.ended


TestAcks = AcksMachine.TestCase
