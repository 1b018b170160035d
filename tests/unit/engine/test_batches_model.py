"""Batches against the model: any interleaving of what is gathered, started together, and ended in part or whole."""

from __future__ import annotations

import logging

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.examples import examples
from tests.support.model.batches import Batches, OneHandler


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [Batches, OneHandler])
def test_any_interleaving_keeps_the_invariants(machine: type[Batches], caplog: pytest.LogCaptureFixture) -> None:
    """I1 to I6 hold after each step, nothing is gathered twice or lost, waits in vain, or is stuck at the end."""
    caplog.set_level(logging.CRITICAL, logger="aioparallel.group.committer")  # commits are refused all the time
    phases = [Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(300), stateful_step_count=60, phases=phases)
    )
