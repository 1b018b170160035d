"""What health() says about readiness."""

from __future__ import annotations

import pytest

from aioparallel import Health, Problem, ProblemKind


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (Health(running=True, problems=(), joined=True), ""),
        (Health(running=False, problems=()), "does not run"),
        (Health(running=True, problems=()), "not all of its partitions are open yet"),
        (Health(running=False, problems=(Problem(ProblemKind.RESTARTING, "why"),)), "problems: restarting"),
        (
            Health(
                running=True,
                problems=(Problem(ProblemKind.RETRYING, "why"), Problem(ProblemKind.BROKER_SILENT, "why")),
                joined=True,
            ),
            "problems: broker_silent",
        ),
    ],
)
def test_the_reason_why_it_is_not_ready(health: Health, reason: str) -> None:
    """Also where there is no problem: while it starts, and in a rebalance."""
    assert health.ready == (not health.reason)
    assert health.reason.endswith(reason) if reason.startswith("problems") else reason in health.reason
