"""Acknowledgements of one partition: single cases, which random ones meet rarely."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from aioparallel.clients.aiokafka.share_acks import Ended, Group, PartitionAcks
from aioparallel.clients.messages.share_records import AcknowledgeType
from aioparallel.group.share_client import Acknowledged

ACCEPT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RENEW
DONE, NOT_HELD, NOT_SENT = Acknowledged.DONE, Acknowledged.NOT_HELD, Acknowledged.NOT_SENT


class Acks:
    """Offsets 0 to 7, whose locks end at 30 or a little later."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.acks = PartitionAcks(self.ended)
        self.acks.acquired(range(8), 30.0, 31.0)
        self.results: dict[tuple[int, AcknowledgeType], Acknowledged] = {}

    def acknowledge(self, offsets: Iterable[int], kind: AcknowledgeType = ACCEPT) -> None:
        for offset in offsets:
            self.acks.acknowledge(offset, kind, partial(self._ended, offset, kind))

    def _ended(self, offset: int, kind: AcknowledgeType, result: Acknowledged, _until: float) -> None:
        assert (offset, kind) not in self.results
        self.results[offset, kind] = result

    def reported(self, result: Acknowledged, kind: AcknowledgeType = ACCEPT) -> list[int]:
        ended, self.ended[:] = self.ended[:], ()
        for report, what, until in ended:
            report(what, until)
        return sorted(offset for (offset, of), found in self.results.items() if (of, found) == (kind, result))

    def take(self, now: float = 1.0) -> Group:
        group = self.acks.take(now)
        assert group is not None
        return group


def offsets(group: Group) -> list[int]:
    return [ack.offset for ack in group.acks]


def test_halves_of_what_was_refused() -> None:
    """Until only the refused one is left."""
    acks = Acks()
    acks.acknowledge(range(8))
    sent = []
    while (group := acks.acks.take(1.0)) is not None:
        sent.append(offsets(group))
        if 5 in sent[-1]:
            acks.acks.refused(group, 1.0)
        else:
            acks.acks.done(group, 1.0)
    assert sent == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]
    assert acks.reported(NOT_HELD) == [5]
    assert acks.reported(DONE) == [0, 1, 2, 3, 4, 6, 7]


def test_new_ones_take_turns_with_those_that_were_refused() -> None:
    acks = Acks()
    acks.acknowledge(range(4))
    acks.acks.refused(acks.take(), 1.0)
    acks.acknowledge([6])
    assert offsets(acks.take()) == [6]
    assert offsets(acks.take()) == [0, 1]
    assert offsets(acks.take()) == [2, 3]


def test_renewals_take_turns_with_new_ones() -> None:
    """A busy partition has new ones in each request."""
    acks = Acks()
    acks.acknowledge([0, 1], RENEW)
    acks.acknowledge([2])
    assert offsets(acks.take()) == [2]
    acks.acknowledge([3])
    assert offsets(acks.take()) == [0, 1]
    acks.acknowledge([4])
    assert offsets(acks.take()) == [3, 4]
    acks.acknowledge([0], RENEW)
    acks.acknowledge([5])
    plain = acks.acks.take(1.0, plain=True)  # what travels with a fetch
    assert plain is not None
    assert offsets(plain) == [5]
    acks.acknowledge([6])
    assert offsets(acks.take()) == [0]


def test_late_ones_go_by_themselves() -> None:
    """If they are surely late, all are believed to be when they are refused."""
    acks = Acks()
    acks.acks.acquired([0, 1], 60.0, 61.0)
    acks.acknowledge(range(8))
    assert offsets(acks.take(40.0)) == [0, 1]
    late = acks.take(40.0)
    assert offsets(late) == [2, 3, 4, 5, 6, 7]
    acks.acks.refused(late, 40.0)
    assert acks.reported(NOT_HELD) == [2, 3, 4, 5, 6, 7]
    assert not acks.acks.is_due


def test_what_is_acquired_again_is_another_delivery() -> None:
    """What is due for the one before is not sent any more, in whichever state it is."""
    acks = Acks()
    acks.acknowledge(range(4))
    acks.acks.refused(acks.take(), 1.0)
    acks.acknowledge([6])
    acks.acks.acquired([0, 1, 2, 6], 60.0, 61.0)
    assert offsets(acks.take()) == [3]
    assert acks.acks.take(1.0) is None
    assert acks.reported(NOT_HELD) == [0, 1, 2, 6]


def test_a_renewal_is_not_sent_after_what_ends_the_record() -> None:
    """Whether it was refused with others before, or comes back from a leader that did not process it."""
    acks = Acks()
    acks.acknowledge([0, 1, 2], RENEW)
    acks.acks.refused(acks.take(), 1.0)
    acks.acknowledge([0, 2])
    ending = acks.take()
    assert offsets(acks.take()) == [1]
    assert acks.acks.take(1.0) is None
    acks.acks.done(ending, 1.0)
    assert acks.reported(DONE) == [0, 2]
    assert acks.reported(NOT_SENT, RENEW) == [0, 2]
    acks.acknowledge([5], RENEW)
    renewal = acks.take()
    acks.acknowledge([5])
    acks.acks.again(renewal, 1.0)
    assert acks.reported(NOT_SENT, RENEW) == [0, 2, 5]


def test_what_is_not_processed_is_due_again_until_its_lock_is_over() -> None:
    acks = Acks()
    acks.acknowledge([0, 1])
    acks.acks.again(acks.take(), 30.5)
    again = acks.take(30.5)
    assert offsets(again) == [0, 1]
    acks.acks.again(again, 31.5)
    assert acks.reported(NOT_HELD) == [0, 1]
    assert not acks.acks.is_due


def test_what_cannot_be_sent_ends_with_its_lock() -> None:
    acks = Acks()
    acks.acks.acquired([0], 60.0, 61.0)
    acks.acknowledge([0, 1])
    acks.acks.expire(29.0)
    assert acks.reported(NOT_SENT) == []
    acks.acks.expire(30.0)
    assert acks.reported(NOT_SENT) == [1]
    assert offsets(acks.take(30.0)) == [0]


def test_gaps_are_acknowledged_by_themselves() -> None:
    """With the records, in the order of offsets. Nobody is told."""
    acks = Acks()
    acks.acks.gap(8, 9, 30.0, 31.0)
    acks.acknowledge([7])
    (batch,) = acks.take().batches()
    assert (batch.first_offset, batch.last_offset, batch.acknowledge_types) == (7, 9, (ACCEPT, 0, 0))


def test_a_renewal_that_is_answered_late_is_not_held() -> None:
    """Although the broker accepts it: below the start offset it accepts everything. It is not sent after its time."""
    acks = Acks()
    acks.acknowledge([0, 1], RENEW)
    renewals = acks.take()
    acks.acknowledge([1])
    acks.acks.done(renewals, 30.0, 60.0, 61.0)
    assert acks.reported(NOT_HELD, RENEW) == [0, 1]
    late = acks.take(30.0)
    assert offsets(late) == [1]
    acks.acks.done(late, 30.0)
    assert acks.reported(DONE) == [1]
    acks.acknowledge([2], RENEW)
    assert acks.acks.take(30.0) is None
    assert acks.reported(NOT_HELD, RENEW) == [0, 1, 2]


def test_a_renewal_after_the_session_was_lost_is_not_held() -> None:
    """Whether it was sent before or not: another member may have the record."""
    acks = Acks()
    acks.acknowledge([0, 1], RENEW)
    acks.acks.refused(acks.take(), 1.0)
    sent = acks.take()
    assert offsets(sent) == [0]
    acks.acknowledge([2], RENEW)
    acks.acks.released()
    acks.acks.done(sent, 1.0, 60.0, 61.0)
    assert acks.acks.take(1.0) is None
    assert acks.reported(NOT_HELD, RENEW) == [0, 1, 2]
