"""The life of a consumer: which step leads where, from every phase, whatever else was wished before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.group.run_state import Phase, RunState
from aioparallel.records.errors import ConsumerStateError

NEW, OPEN, RUNNING, STOPPING, SETTLED, CLOSED = Phase
REFUSED = None

STEPS: dict[str, Callable[[RunState], object]] = {
    "open": RunState.open,
    "begin": RunState.begin,
    "stop": lambda state: state.stop(drain=True),
    "hurry": lambda state: state.stop(drain=False),
    "fail": lambda state: state.fail(ValueError()),
    "cancel": lambda state: state.fail(asyncio.CancelledError()),
    "pause": RunState.pause,
    "resume": RunState.resume,
    "settle": RunState.settle,
    "leave_run": RunState.leave_run,
    "close": RunState.close,
}

TABLE = {
    NEW: {"open": OPEN, "begin": REFUSED, "stop": NEW, "fail": NEW, "close": CLOSED},
    OPEN: {"open": REFUSED, "begin": RUNNING, "stop": OPEN, "fail": OPEN, "close": CLOSED},
    RUNNING: {"open": REFUSED, "begin": REFUSED, "stop": STOPPING, "fail": STOPPING, "close": CLOSED},
    STOPPING: {"open": REFUSED, "begin": REFUSED, "stop": STOPPING, "settle": SETTLED, "close": CLOSED},
    SETTLED: {"open": REFUSED, "begin": REFUSED, "stop": SETTLED, "fail": SETTLED, "settle": SETTLED, "close": CLOSED},
    CLOSED: {"open": REFUSED, "begin": REFUSED, "stop": CLOSED, "fail": CLOSED, "settle": CLOSED, "close": CLOSED},
}
WAY: dict[Phase, list[str]] = {
    NEW: [],
    OPEN: ["open"],
    RUNNING: ["open", "begin"],
    STOPPING: ["open", "begin", "stop"],
    SETTLED: ["open", "begin", "stop", "settle"],
    CLOSED: ["open", "begin", "stop", "settle", "close"],
}


def after(*steps: str) -> RunState:
    state = RunState(1)
    for step in steps:
        STEPS[step](state)
    return state


@pytest.mark.parametrize(
    ("phase", "step", "then"), [(phase, step, then) for phase, row in TABLE.items() for step, then in row.items()]
)
def test_each_step_from_each_phase(phase: Phase, step: str, then: Phase | None) -> None:
    """What is refused changes nothing and says how it is."""
    state = after(*WAY[phase])
    assert state.phase is phase
    if then is REFUSED:
        with pytest.raises(ConsumerStateError, match=f"this consumer is {phase.value} and cannot be"):
            STEPS[step](state)
        then = phase
    else:
        STEPS[step](state)
    assert state.phase is then


def test_what_is_refused_says_what_to_do() -> None:
    """Open it first; or make another one, for no consumer runs twice."""
    with pytest.raises(ConsumerStateError, match="use it in `async with consumer:`"):
        after().begin()
    with pytest.raises(ConsumerStateError, match="make a new one"):
        after("open", "begin").begin()


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=30))
def test_whatever_comes_in_whatever_order(steps: list[str]) -> None:
    """Phases go one way; what is ending stays so, what is hurried stays so; what may start is running and not paused;
    the first reason to end is kept; a stop is no failure."""
    state, phases = RunState(1), list(Phase)
    ended_by: object = None
    for step in steps:
        before, was_ending, was_hurried = state.phase, state.ending.is_set(), state.hurried.is_set()
        try:
            STEPS[step](state)
        except ConsumerStateError:
            assert step in ("open", "begin")
            assert state.phase is before
        if state.ending.is_set() and ended_by is None:
            ended_by = step
        assert phases.index(state.phase) >= phases.index(before)
        assert state.ending.is_set() >= was_ending
        assert state.hurried.is_set() == (was_hurried or step == "hurry")
        assert (state.failure is not None) == (ended_by in ("fail", "cancel"))
        assert state.may_start == (state.phase is RUNNING and not state.is_paused)
        if state.phase is RUNNING:
            assert not state.ending.is_set()
        if state.phase in (STOPPING, CLOSED):
            assert state.ending.is_set()


def test_a_stop_before_the_run_makes_it_begin_as_stopping() -> None:
    """It was wished while the consumer connected."""
    assert after("stop", "open", "begin").phase is STOPPING
    assert after("open", "hurry", "begin").hurried.is_set()


def test_the_first_reason_counts() -> None:
    """A failure after a stop, or after another failure, is told to be late and changes nothing."""
    state, first = after("open", "begin"), ValueError()
    assert state.fail(first)
    assert not state.fail(KeyError())
    assert state.failure is first
    stopped = after("open", "begin", "stop")
    assert not stopped.fail(KeyError())
    assert stopped.failure is None


def test_a_run_is_under_way_from_its_begin_until_it_returns() -> None:
    """Whoever closes waits for it; without one there is nothing to wait for."""
    assert after("open").returned.is_set()
    assert not after("open", "begin", "stop", "settle").returned.is_set()
    assert after("open", "begin", "stop", "settle", "leave_run").returned.is_set()


def test_pausing_is_remembered_before_the_run() -> None:
    """And ends with resume(); neither brings a stopped run back."""
    paused = after("pause", "open", "begin")
    assert paused.is_running
    assert not paused.may_start
    assert after("pause", "open", "begin", "resume").may_start
    assert not after("pause", "open", "begin", "stop", "resume").may_start
