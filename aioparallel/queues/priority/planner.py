"""Plans the next poll: each priority's share of the budget, within its share of the buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.intake import Intake, Plan
from aioparallel.queues.priority.budget import PollBudget, shares
from aioparallel.queues.priority.client import PriorityClient

__all__ = ["PollPlanner"]


class PollPlanner:
    """Plans each priority like a separate consumer. A :class:`~aioparallel.group.priorities.Planner`.

    Each priority has a share of the buffer that no other uses, so urgent records always find capacity. A burst uses
    capacity outside these shares, unless the records of an earlier burst still occupy it.
    """

    def __init__(
        self,
        options: Options,
        scheduler: Scheduler,
        waiting: Callable[[], tuple[int, int]],
        *,
        client: PriorityClient,
        budget: PollBudget,
        weights: Sequence[float],
    ) -> None:
        self._client = client
        self._budget = budget
        # A burst is never more than the budget, so the buffer holds all shares and a burst.
        self._for_bursts = sum(budget.parts)
        self._shares = shares(weights, options.max_buffered - self._for_bursts)
        sizes = [int(options.max_buffered_bytes * weight / sum(weights)) for weight in weights]
        self._intakes = [Intake(options, scheduler, waiting) for _ in weights]
        for intake, share, size in zip(self._intakes, self._shares, sizes, strict=True):
            intake.max_buffered, intake.max_buffered_bytes = share, max(1, size)

    def saw(self, records: int, size: int, rank: int) -> None:
        """Note that so many records of a priority were admitted, with ``size`` bytes."""
        self._intakes[rank].saw(records, size)

    def set_max_concurrency(self, most: int) -> None:
        """Plan for so many handlers at once."""
        for intake in self._intakes:
            intake.set_max_concurrency(most)

    def plan(self, assignments: Sequence[Assignment]) -> Plan:
        """Plan the next poll."""
        of: list[list[Assignment]] = [[] for _ in self._intakes]
        for assignment in assignments:
            of[assignment.rank].append(assignment)
        bursting, burst = self._budget.burst()
        burst = min(burst, self._left_for(bursting, of))
        plans: list[Plan] = []
        limits: list[int | None] = []
        for priority, intake in enumerate(self._intakes):
            more = burst if priority == bursting else 0
            intake.max_buffered = self._shares[priority] + more
            plan = intake.plan(of[priority])
            plans.append(plan)
            limits.append(None if _has_enough(plan) else min(plan.most, self._budget.parts[priority] + more))
        self._client.next_poll(limits)
        return Plan(
            {partition: quota for plan in plans for partition, quota in plan.quotas.items()},
            sum(limit or 0 for limit in limits),
            min([plan.starts_until_next for plan in plans if plan.starts_until_next], default=0),
            any(plan.some_wait for plan in plans),
            _state_of(plans),
            [priority for priority, plan in enumerate(plans) if plan.state.startswith("full")],
        )

    def _left_for(self, bursting: int, of: Sequence[Sequence[Assignment]]) -> int:
        """Returns the capacity for a burst that other priorities do not occupy."""
        beyond = [sum([one.buffered for one in held]) - share for held, share in zip(of, self._shares, strict=True)]
        beyond[bursting] = 0
        return max(0, self._for_bursts - sum([one for one in beyond if one > 0]))


def _has_enough(plan: Plan) -> bool:
    """Whether a priority fetches nothing because more of it waits than fits: then it counts as using its share."""
    return not plan.quotas and (plan.state.startswith("full") or plan.state == "enough ready")


def _state_of(plans: Sequence[Plan]) -> str:
    """Returns "fetching" if any priority fetches, else the state of the highest one that is not idle."""
    states = [plan.state for plan in reversed(plans)]
    if "fetching" in states:
        return "fetching"
    busy = [state for state in states if state not in ("at the end", "nothing assigned", "paused")]
    return busy[0] if busy else states[0]
