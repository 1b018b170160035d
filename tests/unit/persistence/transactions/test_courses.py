"""Whole courses of members, faults and transactions, in virtual time, against what must be true at the end."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.transactions.play import Course
from tests.support.virtual_time import VirtualLoop

EACH = 20
"""Seeds in one test: ``make test`` runs 80 of 240."""


@pytest.mark.parametrize("part", [*range(2), *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, 12))])
def test_exactly_once_whatever_happens(part: int) -> None:
    """Requests that are lost, late or refused, brokers that hang, members that are killed, frozen, fenced, that join
    and leave, outputs that only the broker refuses, maps that do not fit: each record has its outputs once, in order.
    """
    for seed in range(part * EACH, (part + 1) * EACH):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            try:
                runner.run(Course(seed).run())
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
