"""What is counted of transactions, and when aborts become a problem."""

from __future__ import annotations

from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.transactions.transaction_counters import TransactionCounters


def abort(counters: TransactionCounters, now: float, *, is_progress: bool = False) -> None:
    """A transaction of one second has been aborted."""
    counters.was_aborted("id", "not delivered", f"at {now:g}", now, began=now - 1, is_progress=is_progress)


def test_aborts_are_a_problem_if_they_are_many() -> None:
    """Until the next commit."""
    counters = TransactionCounters()
    for now in (100.0, 101.0):
        abort(counters, now)
    assert counters.problems("id", 101.0) == ()
    abort(counters, 102.0)
    (problem,) = counters.problems("id", 102.0)
    assert problem.kind is ProblemKind.TRANSACTIONS_ABORTED
    assert problem.message == "the last 3 transactions of id were aborted: at 102"
    counters.was_committed(0.1)
    assert counters.problems("id", 200.0) == ()
    assert counters.aborted == {"not delivered": 3}


def test_aborts_are_a_problem_if_they_last() -> None:
    """From the begin of the first one on."""
    counters = TransactionCounters()
    for now in (100.0, 108.0):
        abort(counters, now)
    assert counters.problems("id", 108.9) == ()
    (problem,) = counters.problems("id", 109.0)
    assert problem.message == "the last 2 transactions of id were aborted: at 108"


def test_aborts_without_anything_left_to_commit_are_no_problem() -> None:
    """Their partitions were lost: an idle member is ready."""
    counters = TransactionCounters()
    for now in (100.0, 101.0, 102.0):
        abort(counters, now)
    counters.nothing_left()
    assert (counters.problems("id", 200.0), counters.why) == ((), "")
    assert counters.aborted.total() == 3


def test_aborts_that_remove_refused_outputs_are_progress() -> None:
    """They are counted, and are no problem."""
    counters = TransactionCounters()
    for now in range(100, 140):
        abort(counters, float(now), is_progress=True)
    assert counters.problems("id", 140.0) == ()
    assert counters.aborted.total() == 40
