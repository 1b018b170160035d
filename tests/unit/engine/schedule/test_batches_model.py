"""Batches against the model: any interleaving of what is gathered, started together, and ended in part or whole."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from aioparallel.config.handling import Ordering
from tests.support.examples import examples
from tests.support.model.batches import Batches, OneHandler, kind
from tests.support.model.model import Cell


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [Batches, OneHandler])
def test_any_interleaving_keeps_the_invariants(machine: type[Batches], caplog: pytest.LogCaptureFixture) -> None:
    """I1 to I6 hold after each step, nothing is gathered twice or lost, waits in vain, or is stuck at the end."""
    caplog.set_level(logging.CRITICAL, logger="aioparallel.group.committer")  # commits are refused all the time
    phases = [Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(100, 300), stateful_step_count=60, phases=phases)
    )


def play(first: list[Cell], second: list[Cell], *moves: Callable[[Batches], object]) -> None:
    """Two partitions of one handler whose batches wait, as a plain test: each move, each invariant, the end."""
    state = Batches()
    state.begin(
        ordering=Ordering.KEY,
        workers=2,
        max_parked=30,
        kinds=[kind(8, linger=1.0)],
        ways=[[0]] * 3,
        logs=[first, second],
    )
    for move in moves:
        move(state)
        state.check_all()
    state.teardown()


def test_of_a_partition_that_goes_all_leaves_a_batch_that_waits() -> None:
    """Several of one lane, too; those of the other partition stay."""
    play([b"a", b"a"], [b"b"], lambda state: state.start(count=1), lambda state: state.stop_or_lose(partition=0))


def test_who_runs_alone_leaves_the_others_waiting() -> None:
    """New records are gathered in the same turn in which one that has failed in company starts by itself."""
    play(
        [b"a", b"b"],
        [None],
        lambda state: state.start(count=1),
        lambda state: state.make_due(pick=0),
        lambda state: state.start(count=1),
        lambda state: state.fail_together(pick=0, one_by_one=True, delay=0.0, wakes=False),
        lambda state: state.fetch(partition=0, cells=[None, None], back=0),
        lambda state: state.advance(0.0),
        lambda state: state.start(count=1),
    )


def test_who_may_bring_more_again_is_waited_for() -> None:
    """What the other partition has brought lingers for it, though that brings no more itself."""
    play(
        [b"a"],
        [b"b"],
        lambda state: state.start(count=1),
        lambda state: state.make_due(pick=0),
        lambda state: state.start(count=1),
        lambda state: state.set_no_more_input(partition=1, no_more_input=True),
        lambda state: state.set_no_more_input(partition=0, no_more_input=True),
        lambda state: state.set_no_more_input(partition=0, no_more_input=False),
        lambda state: state.fetch(partition=1, cells=[None], back=0),
        lambda state: state.start(count=1),
    )
