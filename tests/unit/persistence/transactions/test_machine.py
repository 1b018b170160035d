"""The life of transactions, as it follows from answers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.persistence.transactions.codes import Ask, Meaning, meaning_of
from aioparallel.persistence.transactions.machine import Machine, Outcome, Phase
from aioparallel.persistence.transactions.producer import NO_ANSWER, Epoch, Epochs
from aioparallel.records.error_codes import ErrorCode

FIRST, SECOND, THIRD = Epoch(1, 0), Epoch(1, 1), Epoch(1, 2)
PASSING = [
    NO_ANSWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]
LOST = [
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.PRODUCER_FENCED,
]


def idle() -> Machine:
    """One that has an epoch."""
    machine = Machine(10.0)
    machine.initialized(Epochs(0, FIRST))
    return machine


def ending() -> Machine:
    """One whose offsets were accepted, and whose end was sent."""
    machine = idle()
    machine.begin(0.0)
    machine.sent()
    machine.offsets([0, 0])
    assert machine.ask is Ask.COMMIT
    machine.asking_to_end()
    return machine


def test_a_transaction_goes_its_way() -> None:
    """Outputs, offsets, end; then it rests for two milliseconds, with the next epoch."""
    machine = ending()
    machine.ended(Epochs(0, SECOND))
    assert (machine.phase, machine.outcome, machine.epoch) == (Phase.IDLE, Outcome.COMMITTED, SECOND)
    assert (machine.ask, machine.pause) == (None, 0.002)


@pytest.mark.parametrize("code", PASSING)
def test_an_end_is_repeated_before_anything_else(code: int) -> None:
    """Whatever passes: after an InitProducerId its repetition would be refused though it was committed."""
    machine = ending()
    for _ in range(1_000):
        machine.ended(Epochs(code))
        machine.abort("a partition went")
        assert not machine.out_of_time(1e9)
        assert machine.ask is Ask.COMMIT
        assert machine.epoch == FIRST
        assert 0.005 <= machine.pause <= 0.1
    machine.ended(Epochs(0, SECOND))
    assert machine.outcome is Outcome.COMMITTED


@pytest.mark.parametrize("code", [*LOST, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, -1])
@pytest.mark.parametrize("is_committed", [True, False])
def test_doubt_is_settled_by_reading(code: int, is_committed: bool) -> None:
    """An end that is refused may have been carried out: the stable offsets tell, once they are stable."""
    machine = ending()
    machine.ended(Epochs(code))
    assert (machine.phase, machine.ask) == (Phase.DOUBT, Ask.INITIALIZE)
    machine.initialized(Epochs(ErrorCode.CONCURRENT_TRANSACTIONS))
    machine.initialized(Epochs(0, THIRD))
    assert machine.ask is Ask.READ
    machine.verified(is_committed=None)
    assert (machine.ask, machine.pause) == (Ask.READ, 0.05)
    machine.verified(is_committed=is_committed)
    assert machine.outcome is (Outcome.COMMITTED if is_committed else Outcome.ABORTED)
    assert (machine.phase, machine.epoch) == (Phase.IDLE, THIRD)


def test_doubt_before_an_end_was_sent_needs_no_reading() -> None:
    """Nothing can have been committed."""
    machine = idle()
    machine.begin(0.0)
    machine.broken(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert machine.ask is Ask.INITIALIZE
    machine.initialized(Epochs(0, SECOND))
    assert (machine.phase, machine.outcome) == (Phase.IDLE, Outcome.ABORTED)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_somebody_else_has_the_id(code: int) -> None:
    """Fenced: nothing is asked any more, before it goes on as somebody else."""
    machine = ending()
    machine.ended(Epochs(ErrorCode.PRODUCER_FENCED))
    machine.initialized(Epochs(code))
    assert (machine.phase, machine.ask) == (Phase.FENCED, None)
    machine.restart()
    assert (machine.ask, machine.epoch) == (Ask.INITIALIZE, None)


def test_an_id_that_was_forgotten_is_asked_for_anew() -> None:
    """After a week without a transaction the cluster knows it no more."""
    machine = ending()
    machine.ended(Epochs(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    machine.initialized(Epochs(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert (machine.ask, machine.epoch) == (Ask.INITIALIZE, None)
    machine.initialized(Epochs(0, Epoch(7, 0)))
    assert machine.ask is Ask.READ


def test_its_time_is_over() -> None:
    """Before its offsets were accepted it is aborted, at four fifths of the timeout."""
    machine = idle()
    machine.begin(100.0)
    assert not machine.out_of_time(107.9)
    assert machine.out_of_time(108.0)
    assert machine.ask is Ask.ABORT
    machine.ended(Epochs(NO_ANSWER))
    assert machine.ask is Ask.ABORT
    machine.ended(Epochs(0, SECOND))
    assert (machine.phase, machine.outcome) == (Phase.IDLE, Outcome.ABORTED)


@pytest.mark.parametrize(
    ("codes", "ask"),
    [
        ([0, NO_ANSWER], Ask.OFFSETS),
        ([0, ErrorCode.REBALANCE_IN_PROGRESS], Ask.OFFSETS),
        ([0, ErrorCode.ILLEGAL_GENERATION], Ask.ABORT),
        ([ErrorCode.OFFSET_METADATA_TOO_LARGE, NO_ANSWER], Ask.ABORT),
        ([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0], Ask.ABORT),
        ([ErrorCode.ILLEGAL_GENERATION, ErrorCode.INVALID_PRODUCER_EPOCH], Ask.INITIALIZE),
        ([0, 0], Ask.COMMIT),
    ],
)
def test_what_offsets_are_answered(codes: list[int], ask: Ask) -> None:
    """All must be accepted; the worst decides."""
    machine = idle()
    machine.begin(0.0)
    machine.sent()
    machine.offsets(codes)
    assert machine.ask is ask


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION])
def test_what_is_not_allowed_ends_it(code: int) -> None:
    """Nothing more is asked, and it says why."""
    machine = Machine(10.0)
    machine.initialized(Epochs(code))
    assert machine.ask is None
    assert machine.forbidden == (Ask.INITIALIZE, code)


def test_a_batch_that_is_not_allowed_ends_it() -> None:
    """As anything else that is asked."""
    machine = idle()
    machine.begin(0.0)
    machine.broken(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert machine.ask is None
    assert machine.forbidden == (Ask.SEND, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@given(st.data())
def test_it_never_goes_back_behind_its_end(data: st.DataObject) -> None:  # noqa: C901
    """Any answers: a transaction whose end was sent is over only by that end, or by reading; and no second epoch is
    asked for while the end can be repeated."""
    machine, sent, epoch = idle(), False, FIRST
    codes = st.sampled_from([0, 0, 0, *PASSING, *LOST, *list(ErrorCode)])
    for _ in range(data.draw(st.integers(1, 40))):
        ask = machine.ask
        if machine.forbidden:
            return
        match ask:
            case None if machine.phase is Phase.FENCED:
                machine.restart()
            case None:
                machine.begin(0.0)
                sent = False
            case Ask.INITIALIZE:
                epoch = Epoch(epoch.producer_id, epoch.number + 1)
                machine.initialized(Epochs(data.draw(codes), epoch))
                if sent and machine.phase is Phase.IDLE:
                    raise AssertionError("over without reading")
            case Ask.SEND:
                if data.draw(st.booleans()):
                    machine.sent()
                else:
                    machine.broken(data.draw(codes))
            case Ask.OFFSETS:
                machine.offsets([data.draw(codes), data.draw(codes)])
            case Ask.COMMIT:
                machine.asking_to_end()
                sent = True
                code = data.draw(codes)
                epoch = Epoch(epoch.producer_id, epoch.number + 1)
                machine.ended(Epochs(code, epoch))
                if meaning_of(Ask.COMMIT, code) is Meaning.AGAIN:
                    machine.abort("whatever")
                    assert machine.ask is Ask.COMMIT
                assert machine.phase is not Phase.IDLE or code == 0
            case Ask.ABORT:
                assert not sent
                epoch = Epoch(epoch.producer_id, epoch.number + 1)
                machine.ended(Epochs(data.draw(codes), epoch))
            case Ask.READ:
                assert sent
                machine.verified(is_committed=data.draw(st.sampled_from([True, False, None])))
        if machine.phase is Phase.FENCED:
            sent = False
