"""Scheduler, ledger, retry timers and commits against the model: any interleaving keeps I1 to I7 and I9."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from aioparallel.config.handling import Ordering
from aioparallel.engine.schedule.counters import EndState
from tests.support.examples import examples
from tests.support.model.core import SyncCore
from tests.support.model.model import Cell


@pytest.mark.hypothesis
def test_any_interleaving_keeps_the_invariants(caplog: pytest.LogCaptureFixture) -> None:
    """I1 to I7 and I9 hold after each step of any interleaving, and at its end nothing is stuck or left over."""
    caplog.set_level(logging.CRITICAL, logger="aioparallel.group.committer")  # commits are refused all the time
    # Not "explain": it takes minutes here.
    phases = [Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        SyncCore, settings=settings(max_examples=examples(120, 350), stateful_step_count=80, phases=phases)
    )


def play(begin: Callable[[SyncCore], None], *moves: Callable[[SyncCore], None]) -> None:
    """A sequence that was found once, as a plain test: each move, each invariant, the end."""
    state = SyncCore()
    for move in (begin, *moves):
        move(state)
        state.check_all()
    state.teardown()


def begin(workers: int, *logs: list[Cell]) -> Callable[[SyncCore], None]:
    return lambda state: state.begin(
        ordering=Ordering.KEY,
        workers=workers,
        max_parked=1,
        block=False,
        metadata_limit=0,
        believed_limit=4096,
        logs=list(logs),
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_who_was_held_back_at_its_turn_waits_for_a_whole_round_again(workers: int) -> None:
    """Three partitions with one key each. The first is passed over twice, held back when its turn comes, and let go:
    it has missed its turn, and stands at the end of the line."""
    pair: list[Cell] = [b"a", b"a"]
    play(
        begin(workers, pair, pair, pair),
        *[lambda state: state.run(most=1, looked_at=0, ends=1)] * 3,
        lambda state: state.set_ceiling(pick=0, below=True),
        *[lambda state: state.pause()] * 3,
        lambda state: state.run(most=1, looked_at=0, ends=1),
    )


def test_who_was_held_back_while_another_was_in_flight_waits_for_a_whole_round_again() -> None:
    """The same with one record in flight until the end, whose partition comes back to the line before the first."""
    pair: list[Cell] = [b"a", b"a"]
    play(
        begin(2, pair, pair, pair),
        lambda state: state.start(count=1),
        lambda state: state.end(pick=0, outcome=EndState.SUCCEEDED),
        lambda state: state.start(count=1),
        lambda state: state.run(most=1, looked_at=0, ends=1),
        lambda state: state.set_ceiling(pick=0, below=True),
        lambda state: state.run(most=1, looked_at=0, ends=0),
        lambda state: state.pause(),
    )
