"""RetryLater has an end in Spark: a job would have none."""

from __future__ import annotations

from typing import Any

import pytest

from aioparallel import RetryLater, RetryPolicy
from aioparallel.spark import async_udf, parallel_map, run_locally


@pytest.mark.parametrize(
    ("retry", "calls"), [({}, 3), ({"retry": RetryPolicy(max_attempts=5)}, 5), ({"retry": None}, 1)]
)
def test_it_is_an_attempt(retry: dict[str, Any], calls: int) -> None:
    """By default, with numbers of one's own, and with a single one, in the operator and in the column."""
    made: list[int] = []

    async def later(given: Any) -> Any:
        made.append(1)
        raise RetryLater(0.001, "busy")

    rows = run_locally(parallel_map(later, schema="n int", on_error="emit", **retry), [{"n": 1}])
    assert (rows[0]["attempts"], len(made)) == (calls, calls)
    assert rows[0]["error"] == "RetryLater: busy"
    values = run_locally(async_udf(returns="int", on_error="emit", **retry)(later), [1])
    assert (values[0]["attempts"], len(made)) == (calls, 2 * calls)


def test_its_own_delay_is_kept() -> None:
    """And it may succeed at the last one."""
    made: list[int] = []

    async def later(given: Any) -> Any:
        made.append(1)
        if len(made) < 3:
            raise RetryLater(0.001)
        return {"n": len(made)}

    rows = run_locally(parallel_map(later, schema="n int"), [{"n": 1}])
    assert rows == [{"n": 3}]  # at once: the policy's own delays are a second and two


def test_a_time_of_ones_own() -> None:
    """``max_wait`` bounds it instead, and it counts no attempt."""
    made: list[int] = []

    async def later(given: Any) -> Any:
        made.append(1)
        raise RetryLater(0.01)

    retry = RetryPolicy(max_attempts=2, max_wait=0.15)
    rows = run_locally(parallel_map(later, schema="n int", on_error="emit", retry=retry), [{"n": 1}])
    assert rows[0]["error"].startswith("RetryLater")
    assert len(made) > 3
